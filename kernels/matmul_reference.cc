#include "kernels/matmul_reference.h"

#include <cmath>

namespace lockstep::kernels {
namespace {

double Value(float x) { return x; }
double Value(Bfloat16 x) { return x.value(); }

template <typename T>
double At(const MatMulOperand<T>& matrix, int64_t row, int64_t column) {
  return Value(matrix.transposed ? matrix.data[column * matrix.stride + row]
                                 : matrix.data[row * matrix.stride + column]);
}

template <typename T, typename F>
std::vector<double> SumOf(int64_t m, int64_t n, int64_t k,
                          const MatMulOperand<T>& a, const MatMulOperand<T>& b,
                          F part) {
  std::vector<double> c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        c[i * n + j] += part(At(a, i, l) * At(b, l, j));
      }
    }
  }
  return c;
}

}  // namespace

std::vector<double> MatMulReference(int64_t m, int64_t n, int64_t k,
                                    const MatMulInput& a,
                                    const MatMulInput& b) {
  return SumOf(m, n, k, a, b, [](double x) { return x; });
}

std::vector<double> MatMulReference(int64_t m, int64_t n, int64_t k,
                                    const Bfloat16MatMulInput& a,
                                    const Bfloat16MatMulInput& b) {
  return SumOf(m, n, k, a, b, [](double x) { return x; });
}

std::vector<double> MatMulMagnitudes(int64_t m, int64_t n, int64_t k,
                                     const Bfloat16MatMulInput& a,
                                     const Bfloat16MatMulInput& b) {
  return SumOf(m, n, k, a, b, [](double x) { return std::abs(x); });
}

}  // namespace lockstep::kernels
