// Functions of double whose bits are the same everywhere.
//
// The C library's own differ in their last bit between versions and processors,
// and what is trained must not.  These use nothing but IEEE additions,
// multiplications and divisions, which do not, in a fixed order (the project is
// compiled with -ffp-contract=off).  Errors are below 2 units in the last
// place.
#ifndef COMMON_PORTABLE_MATH_H_
#define COMMON_PORTABLE_MATH_H_

namespace lockstep {

// The natural logarithm.  x must be positive, finite and normal.
double PortableLog(double x);

// e^x.  |x| must be at most 700.
double PortableExp(double x);

// cos(pi x) and sin(pi x).  |x| must be at most 2^50.  Errors are relative to
// the larger of 2^-52 and the result.
double PortableCosPi(double x);
double PortableSinPi(double x);

}  // namespace lockstep

#endif  // COMMON_PORTABLE_MATH_H_
