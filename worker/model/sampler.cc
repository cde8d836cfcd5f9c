#include "worker/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/layout.h"
#include "common/philox.h"
#include "common/status.h"
#include "kernels/device.h"
#include "worker/checkpoint/hugging_face.h"
#include "worker/model/decoder.h"
#include "worker/model/whole_parameters.h"

namespace lockstep {
namespace {

absl::Status CheckOptions(const SamplerOptions& options) {
  if (options.token_count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token count: expected 0 or more, got ", options.token_count));
  }
  if (!(options.temperature >= 0 && options.temperature <= 100)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "temperature: expected 0 to 100, got ", options.temperature));
  }
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top-k: expected 0 or more, got ", options.top_k));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int32_t> ChooseToken(absl::Span<const float> logits,
                                    int64_t position,
                                    const SamplerOptions& options) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model's logit of token ", i,
                       " is not finite: its weights are "
                       "broken"));
    }
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    order.resize(options.top_k);
  }
  std::vector<double> cumulative;
  double sum = 0;
  for (const int32_t token : order) {
    sum += std::exp((double{logits[token]} - double{logits[order.front()]}) /
                    options.temperature);
    cumulative.push_back(sum);
  }
  const PhiloxBlock random = RandomBlock(options.seed, RandomPurpose::kSampling,
                                         0, static_cast<uint64_t>(position));
  const double target = UniformFrom(random[0]) * sum;
  const auto it =
      std::lower_bound(cumulative.begin(), cumulative.end(), target);
  // UniformFrom is below 1, but the product may round up to the sum.
  return it == cumulative.end() ? order.back() : order[it - cumulative.begin()];
}

absl::Status SampleFromFolder(const std::string& folder,
                              const std::vector<int32_t>& prompt,
                              const SamplerOptions& options, int thread_count,
                              const std::function<void(int32_t)>& on_token) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const HuggingFaceModel model,
                   HuggingFaceModel::Open(folder));
  const ModelConfig& config = model.config();
  if (prompt.empty()) {
    return absl::InvalidArgumentError(
        "the prompt is empty: expected at least one token");
  }
  for (const int32_t token : prompt) {
    if (token < 0 || token >= config.vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("the prompt has token ", token, ", expected 0 to ",
                       config.vocabulary - 1, " (vocab_size of ", folder, ")"));
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Device> device,
                   kernels::CreateCpuDevice(thread_count));
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Stream> stream,
                   device->CreateStream());
  const int64_t bytes = model.layout().element_count * int64_t{sizeof(float)};
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> parameters,
                   device->Allocate(bytes));
  {
    std::vector<float> flat(model.layout().element_count);
    RETURN_IF_ERROR(model.ReadWeights(flat.data()));
    RETURN_IF_ERROR(
        stream->CopyToDevice(parameters->data(), flat.data(), bytes));
    RETURN_IF_ERROR(stream->Synchronize());
  }
  const int64_t wanted =
      static_cast<int64_t>(prompt.size()) + options.token_count;
  const int64_t window = std::min(config.position_max, wanted);
  ASSIGN_OR_RETURN(
      std::unique_ptr<WholeParameters> source,
      WholeParameters::Create(model.layout(), Products::kFloat32, *stream));
  RETURN_IF_ERROR(source->Set(parameters->as<float>()));
  ASSIGN_OR_RETURN(
      std::unique_ptr<Decoder> decoder,
      Decoder::Create(config, model.layout(), 1, window, *stream, *source));

  std::vector<int32_t> text = prompt;
  std::vector<int32_t> seen(window);
  std::vector<float> logits(config.vocabulary);
  for (int64_t made = 0; made < options.token_count; ++made) {
    const auto have = std::min<int64_t>(text.size(), window);
    std::copy(text.end() - have, text.end(), seen.begin());
    // Tokens behind the last one are not looked at, but must be tokens.
    std::fill(seen.begin() + have, seen.end(), 0);
    RETURN_IF_ERROR(decoder->Logits(seen.data(), have - 1, logits.data()));
    ASSIGN_OR_RETURN(const int32_t token, ChooseToken(logits, made, options));
    text.push_back(token);
    on_token(token);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
