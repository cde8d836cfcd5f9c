// kernels/attention.h on the CPU.  Arguments are checked already.
#ifndef KERNELS_CPU_ATTENTION_H_
#define KERNELS_CPU_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

// workspace: of workspace::Attention for each thread of the pool.
absl::Status AttentionForward(ThreadPool& pool, const AttentionShape& shape,
                              const float* qkv, float* out, float* log_sum_exp,
                              float* workspace, const DropoutMask* dropout);
absl::Status AttentionBackward(ThreadPool& pool, const AttentionShape& shape,
                               const float* qkv, const float* out,
                               const float* log_sum_exp,
                               const float* out_gradient, float* qkv_gradient,
                               float* workspace, const DropoutMask* dropout);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_ATTENTION_H_
