// kernels/swiglu.h in double precision, plainly.
#ifndef KERNELS_SWIGLU_REFERENCE_H_
#define KERNELS_SWIGLU_REFERENCE_H_

namespace lockstep::kernels {

double SwiGluReference(double gate, double up);

struct SwiGluSlopes {
  double gate, up;
};
SwiGluSlopes SwiGluDerivativeReference(double gate, double up);

}  // namespace lockstep::kernels

#endif  // KERNELS_SWIGLU_REFERENCE_H_
