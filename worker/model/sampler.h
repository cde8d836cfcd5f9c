// Text from a model: one token after the other, by chance that is a function of
// a seed.
#ifndef WORKER_MODEL_SAMPLER_H_
#define WORKER_MODEL_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep {

struct SamplerOptions {
  int64_t token_count = 200;  // To make; 0 or more.
  // Logits are divided by it: 0 takes the likeliest token always; to 100.
  double temperature = 1;
  // Only so many of the likeliest tokens are considered; 0: all.
  int64_t top_k = 0;
  int64_t seed = 0;
};

// The token chosen at `position` (from 0, counting made tokens) by `logits`:
// among equals the one of the lower number.
//
// Errors:
//   InvalidArgument: a logit is not finite.
absl::StatusOr<int32_t> ChooseToken(absl::Span<const float> logits,
                                    int64_t position,
                                    const SamplerOptions& options);

// Reads the model of a Hugging Face folder and makes tokens after `prompt`
// (at least one token), handing each to `on_token` as it comes.  Of a text
// longer than the model's positions the last ones are what it sees.
//
// Errors: the folder's; InvalidArgument: an option is out of range, the prompt
// is empty, or one of its tokens is outside the vocabulary.
absl::Status SampleFromFolder(const std::string& folder,
                              const std::vector<int32_t>& prompt,
                              const SamplerOptions& options, int thread_count,
                              const std::function<void(int32_t)>& on_token);

}  // namespace lockstep

#endif  // WORKER_MODEL_SAMPLER_H_
