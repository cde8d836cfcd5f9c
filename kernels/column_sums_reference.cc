#include "kernels/column_sums_reference.h"

#include <iterator>

namespace lockstep::kernels {

std::vector<double> ColumnSumsReference(const std::vector<double>& x,
                                        int64_t width) {
  std::vector<double> sums(width);
  for (int64_t i = 0; i < std::ssize(x); ++i) sums[i % width] += x[i];
  return sums;
}

}  // namespace lockstep::kernels
