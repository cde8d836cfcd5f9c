#include "worker/model/rotary_table.h"

#include "common/check.h"
#include "common/portable_math.h"

namespace lockstep {
namespace {

constexpr double kPi = 3.14159265358979323846;

double Scaled(const RotaryScaling& scaling, double frequency) {
  const double wave_length = 2 * kPi / frequency;
  const auto original = static_cast<double>(scaling.original_position_max);
  if (wave_length > original / scaling.low_frequency_factor) {
    return frequency / scaling.factor;
  }
  if (wave_length < original / scaling.high_frequency_factor) {
    return frequency;
  }
  const double s =
      (original / wave_length - scaling.low_frequency_factor) /
      (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return frequency * ((1 - s) / scaling.factor + s);
}

}  // namespace

std::vector<double> RotaryFrequencies(const ModelConfig& config) {
  LS_CHECK(!config.is_gpt2());
  const double log_base = PortableLog(config.rotary_base);
  std::vector<double> frequencies;
  for (int64_t j = 0; j < config.head_width / 2; ++j) {
    const double turned =
        static_cast<double>(2 * j) / static_cast<double>(config.head_width);
    const double frequency = PortableExp(-turned * log_base);
    frequencies.push_back(config.rotary_scaling.has_value()
                              ? Scaled(*config.rotary_scaling, frequency)
                              : frequency);
  }
  return frequencies;
}

RotaryTable MakeRotaryTable(const ModelConfig& config, int64_t position_count) {
  const std::vector<double> frequencies = RotaryFrequencies(config);
  RotaryTable table;
  for (int64_t position = 0; position < position_count; ++position) {
    for (const double frequency : frequencies) {
      const double half_turns = static_cast<double>(position) * frequency / kPi;
      table.cosine.push_back(static_cast<float>(PortableCosPi(half_turns)));
      table.sine.push_back(static_cast<float>(PortableSinPi(half_turns)));
    }
  }
  return table;
}

}  // namespace lockstep
