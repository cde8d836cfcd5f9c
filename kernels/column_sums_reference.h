// kernels/column_sums.h in double.  For tests.
#ifndef KERNELS_COLUMN_SUMS_REFERENCE_H_
#define KERNELS_COLUMN_SUMS_REFERENCE_H_

#include <cstdint>
#include <vector>

namespace lockstep::kernels {

std::vector<double> ColumnSumsReference(const std::vector<double>& x,
                                        int64_t width);

}  // namespace lockstep::kernels

#endif  // KERNELS_COLUMN_SUMS_REFERENCE_H_
