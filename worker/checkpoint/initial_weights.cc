#include "worker/checkpoint/initial_weights.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/philox.h"
#include "common/portable_math.h"

namespace lockstep {
namespace {

// Elements [4 block, 4 block + 4) of tensor `tensor`, of deviation 1.
void FourNormals(int64_t seed, uint32_t tensor, uint64_t block, double* out) {
  const PhiloxBlock words =
      RandomBlock(seed, RandomPurpose::kInitialWeights, tensor, block);
  for (int pair = 0; pair < 2; ++pair) {
    const double radius =
        std::sqrt(-2 * PortableLog(UniformFrom(words[2 * pair])));
    const double turn = 2 * UniformFrom(words[2 * pair + 1]);
    out[2 * pair] = radius * PortableCosPi(turn);
    out[2 * pair + 1] = radius * PortableSinPi(turn);
  }
}

void FillNormal(int64_t seed, uint32_t tensor, int64_t n, double deviation,
                float* out) {
  double normals[4];
  for (int64_t i = 0; i < n; i += 4) {
    FourNormals(seed, tensor, static_cast<uint64_t>(i / 4), normals);
    for (int64_t k = 0; k < std::min<int64_t>(4, n - i); ++k) {
      out[i + k] = static_cast<float>(deviation * normals[k]);
    }
  }
}

}  // namespace

void InitializeUnit(const ModelConfig& config, const Layout& layout,
                    int64_t seed, int unit, float* values) {
  const double plain = config.initializer_range;
  // GPT-2 alone scales what adds to the residual stream.
  const double residual =
      config.is_gpt2()
          ? plain / std::sqrt(2 * static_cast<double>(config.layer_count))
          : plain;
  const Unit& u = layout.units[unit];
  std::fill_n(values, u.range.element_count, 0.0f);
  for (int i = u.first_tensor; i < u.end_tensor; ++i) {
    const Tensor& t = layout.tensors[i];
    float* const out = values + t.offset - u.range.offset;
    switch (t.role) {
      case TensorRole::kTokenEmbedding:
      case TensorRole::kPositionEmbedding:
      case TensorRole::kQkvWeight:
      case TensorRole::kQueryWeight:
      case TensorRole::kKeyWeight:
      case TensorRole::kValueWeight:
      case TensorRole::kInnerWeight:
      case TensorRole::kGateWeight:
      case TensorRole::kHeadWeight:
        FillNormal(seed, static_cast<uint32_t>(i), t.element_count, plain, out);
        break;
      case TensorRole::kAttentionOutWeight:
      case TensorRole::kOuterWeight:
        FillNormal(seed, static_cast<uint32_t>(i), t.element_count, residual,
                   out);
        break;
      case TensorRole::kNorm1Weight:
      case TensorRole::kNorm2Weight:
      case TensorRole::kFinalNormWeight:
        std::fill(out, out + t.element_count, 1.0f);
        break;
      case TensorRole::kNorm1Bias:
      case TensorRole::kQkvBias:
      case TensorRole::kQueryBias:
      case TensorRole::kKeyBias:
      case TensorRole::kValueBias:
      case TensorRole::kGateBias:
      case TensorRole::kAttentionOutBias:
      case TensorRole::kNorm2Bias:
      case TensorRole::kInnerBias:
      case TensorRole::kOuterBias:
      case TensorRole::kFinalNormBias:
        break;  // Zero.
    }
  }
}

}  // namespace lockstep
