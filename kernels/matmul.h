// Matrix product, row-major, of float32 or of bfloat16, summed in float32.
#ifndef KERNELS_MATMUL_H_
#define KERNELS_MATMUL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/bfloat16.h"
#include "kernels/device.h"

namespace lockstep::kernels {

// A matrix to read: rows of the memory start `stride` elements apart.
// Transposed, the memory holds the matrix's columns as rows.
template <typename T>
struct MatMulOperand {
  const T* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};
using MatMulInput = MatMulOperand<float>;
using Bfloat16MatMulInput = MatMulOperand<Bfloat16>;

struct MatMulOptions {
  // What the product is added to, each 0 where absent.
  bool accumulate = false;          // C itself.
  const float* residual = nullptr;  // (m, n) with C's stride; may be C.
  const float* bias = nullptr;      // (n), the same for every row.
};

// C = A B, C += A B, or C = A B + residual + bias, as options say; not
// accumulate together with the others.
//
// a: (m, k), b: (k, n) read
// c: (m, n) written, rows `c_stride` apart; what lies between them is left
//   alone
//
// Device memory of any alignment of its elements; c overlaps neither a nor b.
// m = 0 or n = 0 is a no-op; k = 0 adds nothing.  NaN and infinity are carried
// as IEEE 754 says.
//
// The bits of an element depend on its row of A, its column of B, its place and
// the shape (at an edge the library may add in another order); not on the other
// rows and columns, nor on the number of threads.
//
// Errors:
//   InvalidArgument: a size is negative or too large, a stride is shorter than
//     a row, a pointer is null, or options exclude each other.
//   Internal: the library refused; the message has its code.
absl::Status MatMul(Stream& stream, int64_t m, int64_t n, int64_t k,
                    const MatMulInput& a, const MatMulInput& b, float* c,
                    int64_t c_stride, const MatMulOptions& options = {});

// Of bfloat16: every product of two elements is exact, and values below the
// smallest normal one may count as zero, in the inputs and in sums.
//
// Errors, besides the above:
//   Unimplemented: the device has no such products (Device::has_bfloat16).
absl::Status MatMul(Stream& stream, int64_t m, int64_t n, int64_t k,
                    const Bfloat16MatMulInput& a, const Bfloat16MatMulInput& b,
                    float* c, int64_t c_stride,
                    const MatMulOptions& options = {});

}  // namespace lockstep::kernels

#endif  // KERNELS_MATMUL_H_
