#include "common/portable_math.h"

#include <bit>
#include <cstdint>

#include "common/check.h"

namespace lockstep {
namespace {

constexpr double kPi = 3.14159265358979323846;

// sin(y) and cos(y) for |y| <= pi / 4, by their Taylor series.  The first terms
// left out are below 2^-57 of the result.
double SinSmall(double y) {
  const double z = y * y;
  double sum = 1.0 / 355687428096000;  // 17!
  sum = sum * z - 1.0 / 1307674368000;
  sum = sum * z + 1.0 / 6227020800;
  sum = sum * z - 1.0 / 39916800;
  sum = sum * z + 1.0 / 362880;
  sum = sum * z - 1.0 / 5040;
  sum = sum * z + 1.0 / 120;
  sum = sum * z - 1.0 / 6;
  return y + y * (z * sum);
}

double CosSmall(double y) {
  const double z = y * y;
  double sum = 1.0 / 20922789888000;  // 16!
  sum = sum * z - 1.0 / 87178291200;  // 14!
  sum = sum * z + 1.0 / 479001600;
  sum = sum * z - 1.0 / 3628800;
  sum = sum * z + 1.0 / 40320;
  sum = sum * z - 1.0 / 720;
  sum = sum * z + 1.0 / 24;
  return 1.0 - z / 2 + z * z * sum;
}

// sin(pi (x + quarters / 2)).
double SinPiQuarters(double x, int64_t quarters) {
  LS_CHECK(-0x1p50 <= x && x <= 0x1p50);
  // x = n / 2 + rest with |rest| <= 1/4, exactly.
  const double doubled = 2 * x;
  int64_t n = static_cast<int64_t>(doubled);
  if (doubled - static_cast<double>(n) > 0.5) ++n;
  if (doubled - static_cast<double>(n) < -0.5) --n;
  const double y = kPi * (x - static_cast<double>(n) / 2);
  switch (static_cast<uint64_t>(n + quarters) % 4) {
    case 0:
      return SinSmall(y);
    case 1:
      return CosSmall(y);
    case 2:
      return -SinSmall(y);
    default:
      return -CosSmall(y);
  }
}

}  // namespace

double PortableLog(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto biased = static_cast<int>(bits >> 52);  // Sign included.
  LS_CHECK(0 < biased && biased < 0x7ff);
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
  constexpr double kSqrt2 = 1.41421356237309504880;
  int e = biased - 1023;
  double m =
      std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  if (m >= kSqrt2) {
    m /= 2;
    ++e;
  }
  // log(m) = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.1716: the first
  // term left out, s^25 / 25, is below 2^-65.
  const double f = m - 1;  // Exact.
  const double s = f / (2 + f);
  const double z = s * s;
  double sum = 1.0 / 23;
  for (int k = 21; k >= 3; k -= 2) sum = sum * z + 1.0 / k;
  // 2 s = f - f s, so that the leading term is exact.
  const double tail = 2 * s * (z * sum) - f * s;
  // ln 2 in two parts, the first with 20 low bits zero: its products with e are
  // exact.
  constexpr double kLn2High = 0x1.62e42fefp-1;
  constexpr double kLn2Low = 0x1.473de6af278edp-34;
  return e * kLn2High + (f + (tail + e * kLn2Low));
}

double PortableExp(double x) {
  LS_CHECK(-700 <= x && x <= 700);
  // x = n ln 2 + r, |r| <= ln 2 / 2; n times the first part of ln 2, whose 20
  // low bits are zero, is exact.
  constexpr double kInverseLn2 = 1.44269504088896340736;
  constexpr double kLn2High = 0x1.62e42fefp-1;
  constexpr double kLn2Low = 0x1.473de6af278edp-34;
  const double scaled = x * kInverseLn2;
  const auto n = static_cast<int64_t>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double r = (x - static_cast<double>(n) * kLn2High) -
                   static_cast<double>(n) * kLn2Low;
  // The Taylor series; the first term left out is below 2^-57 of the result.
  double sum = 1.0 / 87178291200;  // 14!
  sum = sum * r + 1.0 / 6227020800;
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  const double small = 1 + (r + r * (r * sum));
  const auto power =
      std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
  return small * power;
}

double PortableCosPi(double x) { return SinPiQuarters(x, 1); }
double PortableSinPi(double x) { return SinPiQuarters(x, 0); }

}  // namespace lockstep
