#include "kernels/cpu/sgemm.h"

#include <dnnl.h>
#include <omp.h>

#include "absl/strings/str_cat.h"

namespace lockstep::kernels::cpu {

absl::Status Sgemm(int64_t m, int64_t n, int64_t k, float alpha,
                   const MatMulInput& a, const MatMulInput& b, float beta,
                   float* c, int64_t c_stride) {
  // OpenMP keeps this number per thread.
  thread_local const bool one_thread = [] {
    omp_set_num_threads(1);
    return true;
  }();
  (void)one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k,
                 alpha, a.data, a.stride, b.data, b.stride, beta, c, c_stride);
  if (status != dnnl_success) {
    return absl::InternalError(absl::StrCat(
        "dnnl_sgemm: status ", static_cast<int>(status), " for m=", m, " n=", n,
        " k=", k, " strides ", a.stride, ", ", b.stride, ", ", c_stride));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::kernels::cpu
