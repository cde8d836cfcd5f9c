// Which instruction sets the CPU kernels are compiled for, and which one runs.
//
// A kernel's source is compiled once for AVX2 (with FMA) and once for AVX-512,
// by Highway; weaker processors are refused when the device is created.  Such a
// source includes this header before Highway's, wraps its vector code in
// `#if LS_SIMD_TARGET`, and calls it through LS_DISPATCH.
#ifndef KERNELS_CPU_TARGETS_H_
#define KERNELS_CPU_TARGETS_H_

#ifdef HWY_TARGETS
#error "Include kernels/cpu/targets.h before hwy/highway.h."
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)

#define LS_SIMD_TARGET (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)

// The function `name` of the instruction set that runs.
#define LS_DISPATCH(name)                            \
  (::lockstep::kernels::cpu::RunningTarget() ==      \
           ::lockstep::kernels::cpu::Target::kAvx512 \
       ? N_AVX3::name                                \
       : N_AVX2::name)

namespace lockstep::kernels::cpu {

enum class Target { kNone, kAvx2, kAvx512 };

// The best one of this processor.
Target BestTarget();

// BestTarget(), or what a test has set.
Target RunningTarget();

// Makes all CPU kernels of the process run `target`, which the processor must
// have; kNone goes back to the best.  Not while a kernel runs.
void SetRunningTargetForTest(Target target);

}  // namespace lockstep::kernels::cpu

#endif  // KERNELS_CPU_TARGETS_H_
