// Where every parameter lives: tensors in units, units in one flat space.
//
// A unit's tensors stand one behind the other in its flat space, each starting
// at a multiple of kTensorAlignment elements; padding between them holds zeros
// and is part of buckets like everything else.  A unit is cut into buckets of
// equal size (the last may be shorter), and bucket boundaries know nothing of
// tensors.  Units stand in forward order: embedding, blocks, head.  The same
// layout serves parameters, gradients, accumulators and optimizer state.
#ifndef COMMON_LAYOUT_H_
#define COMMON_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/model_config.h"

namespace lockstep {

// Elements; 64 bytes of float32.
inline constexpr int64_t kTensorAlignment = 16;

// Weights of products are stored as their family's files have them: GPT-2's
// in x out, the others' out x in.  A tensor that the config does not ask for is
// absent.
enum class TensorRole {
  kTokenEmbedding,     // (vocabulary, width)
  kPositionEmbedding,  // (position_max, width); GPT-2.
  kNorm1Weight,        // (width)
  kNorm1Bias,          // (width)
  kQkvWeight,          // width to 3 width, GPT-2: columns of query, key, value.
  kQkvBias,
  kQueryWeight,  // width to query_width; likewise the next two: the others.
  kQueryBias,
  kKeyWeight,
  kKeyBias,
  kValueWeight,
  kValueBias,
  kAttentionOutWeight,  // query_width to width
  kAttentionOutBias,
  kNorm2Weight,  // (width)
  kNorm2Bias,    // (width)
  kInnerWeight,  // width to inner_width: GPT-2's only, the others' up.
  kInnerBias,
  kGateWeight,  // width to inner_width; not GPT-2.
  kGateBias,
  kOuterWeight,  // inner_width to width
  kOuterBias,
  kFinalNormWeight,  // (width)
  kFinalNormBias,    // (width)
  kHeadWeight,       // (vocabulary, width); absent when tied
};

struct Tensor {
  // As Hugging Face names it, the one name in files, metrics and messages:
  // "transformer.h.0.attn.c_attn.weight".
  std::string name;
  TensorRole role;
  int layer = -1;              // Of a block's tensor; else -1.
  std::vector<int64_t> shape;  // Row-major; 1 or 2 dimensions.
  int unit = 0;                // Index into Layout::units.
  int64_t offset = 0;          // Elements, from the start of the flat space.
  int64_t element_count = 0;   // Product of `shape`.

  // Weight decay applies to matrices only.
  bool decays() const { return shape.size() >= 2; }
};

// A range of the flat space: elements [offset, offset + element_count).
struct FlatRange {
  int64_t offset = 0;
  int64_t element_count = 0;
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

struct Unit {
  std::string name;      // "embedding", "block.0", ..., "head".
  FlatRange range;       // Its tensors and their padding.
  int first_tensor = 0;  // Its tensors are [first_tensor, end_tensor).
  int end_tensor = 0;
};

struct Layout {
  std::vector<Tensor> tensors;  // In flat order.
  std::vector<Unit> units;      // In forward order, without gaps.
  int64_t element_count = 0;    // Of the flat space, padding included.
  int64_t parameter_count = 0;  // Without padding.

  // The index of the one tensor of this role (and layer); -1 if there is none.
  int Find(TensorRole role, int layer = -1) const;
};

// `config` must be valid.
Layout MakeLayout(const ModelConfig& config);

// A unit's buckets, in order: together the unit's range, each of
// `bucket_elements` but the last, which may be shorter.  Positive sizes only.
std::vector<FlatRange> CutBuckets(const FlatRange& unit,
                                  int64_t bucket_elements);

// Part `index` of a range that is cut, from its start, into parts of `size`
// elements: the last parts may be shorter, or empty.
FlatRange PartOf(const FlatRange& range, int64_t size, int64_t index);

// Elements of a rank's part of n elements split evenly over `world` ranks:
// ceil(n / world) rounded up to kTensorAlignment.
int64_t ShardSize(int64_t n, int world);

// Rank `rank`'s part of a bucket: of ShardSize.
FlatRange ShardOf(const FlatRange& bucket, int rank, int world);

}  // namespace lockstep

#endif  // COMMON_LAYOUT_H_
