// The angles of rotary positions.
#ifndef WORKER_MODEL_ROTARY_TABLE_H_
#define WORKER_MODEL_ROTARY_TABLE_H_

#include <cstdint>
#include <vector>

#include "common/model_config.h"

namespace lockstep {

// What pair j of a head turns by from one position to the next, in radians:
// rotary_base^(-2 j / head_width), scaled as rotary_scaling says; head_width /
// 2 of them.  The same bits everywhere.  `config` has rotary positions.
std::vector<double> RotaryFrequencies(const ModelConfig& config);

// Of positions 0 to position_count - 1: (position_count, head_width / 2) each.
struct RotaryTable {
  std::vector<float> cosine, sine;
};
RotaryTable MakeRotaryTable(const ModelConfig& config, int64_t position_count);

}  // namespace lockstep

#endif  // WORKER_MODEL_ROTARY_TABLE_H_
