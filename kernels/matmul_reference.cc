#include "kernels/matmul_reference.h"

namespace lockstep::kernels {
namespace {

double At(const MatMulInput& matrix, int64_t row, int64_t column) {
  return matrix.transposed ? matrix.data[column * matrix.stride + row]
                           : matrix.data[row * matrix.stride + column];
}

}  // namespace

std::vector<double> MatMulReference(int64_t m, int64_t n, int64_t k,
                                    const MatMulInput& a,
                                    const MatMulInput& b) {
  std::vector<double> c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) c[i * n + j] += At(a, i, l) * At(b, l, j);
    }
  }
  return c;
}

}  // namespace lockstep::kernels
