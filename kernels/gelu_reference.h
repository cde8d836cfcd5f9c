// kernels/gelu.h in double, without the bias.  For tests.
#ifndef KERNELS_GELU_REFERENCE_H_
#define KERNELS_GELU_REFERENCE_H_

namespace lockstep::kernels {

double GeluReference(double z);
double GeluDerivativeReference(double z);

}  // namespace lockstep::kernels

#endif  // KERNELS_GELU_REFERENCE_H_
