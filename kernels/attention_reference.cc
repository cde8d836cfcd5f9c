#include "kernels/attention_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/dropout_reference.h"

namespace lockstep::kernels {
namespace {

// Where head `h`'s part of a row of qkv begins: which = 0, 1, 2 for query, key
// and value.
int64_t At(const AttentionShape& s, int64_t row, int64_t t, int which,
           int64_t h) {
  const int64_t token = (row * s.sequence_length + t) * s.qkv_width();
  if (which == 0) return token + h * s.head_width;
  const int64_t shared = h / (s.head_count / s.key_value_head_count);
  return token + s.width() + (which - 1) * s.key_value_width() +
         shared * s.head_width;
}

// p[t, 0..t], and the log-sum-exp of the scores behind it.
std::vector<double> Probabilities(const AttentionShape& s,
                                  const std::vector<double>& qkv, int64_t row,
                                  int64_t h, int64_t t, double* log_sum_exp) {
  std::vector<double> p(t + 1);
  for (int64_t k = 0; k <= t; ++k) {
    for (int64_t c = 0; c < s.head_width; ++c) {
      p[k] += qkv[At(s, row, t, 0, h) + c] * qkv[At(s, row, k, 1, h) + c];
    }
    p[k] /= std::sqrt(s.head_width);
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (const double score : p) sum += std::exp(score - max);
  for (double& score : p) score = std::exp(score - max) / sum;
  *log_sum_exp = max + std::log(sum);
  return p;
}

// What p[t, k] is multiplied by.
double FactorOf(const AttentionShape& s, const DropoutMask* dropout,
                int64_t row, int64_t h, int64_t t, int64_t k) {
  if (dropout == nullptr) return 1;
  const int64_t stride = (s.sequence_length + 3) / 4 * 4;
  return DropoutFactorReference(*dropout, row,
                                (h * s.sequence_length + t) * stride + k);
}

}  // namespace

AttentionReference AttentionForwardReference(const AttentionShape& s,
                                             const std::vector<double>& qkv,
                                             const DropoutMask* dropout) {
  AttentionReference r;
  r.out.resize(s.row_count * s.sequence_length * s.width());
  r.log_sum_exp.resize(s.row_count * s.head_count * s.sequence_length);
  for (int64_t row = 0; row < s.row_count; ++row) {
    for (int64_t h = 0; h < s.head_count; ++h) {
      for (int64_t t = 0; t < s.sequence_length; ++t) {
        const std::vector<double> p = Probabilities(
            s, qkv, row, h, t,
            &r.log_sum_exp[(row * s.head_count + h) * s.sequence_length + t]);
        double* const out = &r.out[(row * s.sequence_length + t) * s.width() +
                                   h * s.head_width];
        for (int64_t k = 0; k <= t; ++k) {
          for (int64_t c = 0; c < s.head_width; ++c) {
            out[c] += p[k] * FactorOf(s, dropout, row, h, t, k) *
                      qkv[At(s, row, k, 2, h) + c];
          }
        }
      }
    }
  }
  return r;
}

std::vector<double> AttentionBackwardReference(
    const AttentionShape& s, const std::vector<double>& qkv,
    const std::vector<double>& out_gradient, const DropoutMask* dropout) {
  std::vector<double> gradient(qkv.size());
  for (int64_t row = 0; row < s.row_count; ++row) {
    for (int64_t h = 0; h < s.head_count; ++h) {
      for (int64_t t = 0; t < s.sequence_length; ++t) {
        double unused;
        const std::vector<double> p = Probabilities(s, qkv, row, h, t, &unused);
        const double* const out =
            &out_gradient[(row * s.sequence_length + t) * s.width() +
                          h * s.head_width];
        std::vector<double> p_gradient(t + 1);
        double mean = 0;
        for (int64_t k = 0; k <= t; ++k) {
          const double factor = FactorOf(s, dropout, row, h, t, k);
          for (int64_t c = 0; c < s.head_width; ++c) {
            p_gradient[k] += factor * out[c] * qkv[At(s, row, k, 2, h) + c];
            gradient[At(s, row, k, 2, h) + c] += p[k] * factor * out[c];
          }
          mean += p[k] * p_gradient[k];
        }
        for (int64_t k = 0; k <= t; ++k) {
          const double score =
              p[k] * (p_gradient[k] - mean) / std::sqrt(s.head_width);
          for (int64_t c = 0; c < s.head_width; ++c) {
            gradient[At(s, row, t, 0, h) + c] +=
                score * qkv[At(s, row, k, 1, h) + c];
            gradient[At(s, row, k, 1, h) + c] +=
                score * qkv[At(s, row, t, 0, h) + c];
          }
        }
      }
    }
  }
  return gradient;
}

}  // namespace lockstep::kernels
