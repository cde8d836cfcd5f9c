#include "common/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

class LayoutBuilder {
 public:
  void BeginUnit(std::string name) {
    Unit unit;
    unit.name = std::move(name);
    unit.range.offset = layout_.element_count;
    unit.first_tensor = static_cast<int>(layout_.tensors.size());
    layout_.units.push_back(std::move(unit));
  }

  void Add(TensorRole role, int layer, std::string name,
           std::vector<int64_t> shape) {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.role = role;
    tensor.layer = layer;
    tensor.unit = static_cast<int>(layout_.units.size()) - 1;
    tensor.offset = layout_.element_count;
    tensor.element_count = 1;
    for (int64_t dim : shape) tensor.element_count *= dim;
    tensor.shape = std::move(shape);
    layout_.parameter_count += tensor.element_count;
    layout_.element_count += RoundUp(tensor.element_count, kTensorAlignment);
    layout_.tensors.push_back(std::move(tensor));
    Unit& unit = layout_.units.back();
    unit.end_tensor = static_cast<int>(layout_.tensors.size());
    unit.range.element_count = layout_.element_count - unit.range.offset;
  }

  Layout Take() { return std::move(layout_); }

 private:
  Layout layout_;
};

Layout MakeGpt2Layout(const ModelConfig& c) {
  using R = TensorRole;
  const std::string top = "transformer.";
  LayoutBuilder b;

  b.BeginUnit("embedding");
  b.Add(R::kTokenEmbedding, -1, top + "wte.weight", {c.vocabulary, c.width});
  b.Add(R::kPositionEmbedding, -1, top + "wpe.weight",
        {c.position_max, c.width});

  for (int i = 0; i < c.layer_count; ++i) {
    b.BeginUnit(absl::StrCat("block.", i));
    const std::string h = absl::StrCat(top, "h.", i, ".");
    b.Add(R::kNorm1Weight, i, h + "ln_1.weight", {c.width});
    b.Add(R::kNorm1Bias, i, h + "ln_1.bias", {c.width});
    b.Add(R::kQkvWeight, i, h + "attn.c_attn.weight", {c.width, 3 * c.width});
    b.Add(R::kQkvBias, i, h + "attn.c_attn.bias", {3 * c.width});
    b.Add(R::kAttentionOutWeight, i, h + "attn.c_proj.weight",
          {c.width, c.width});
    b.Add(R::kAttentionOutBias, i, h + "attn.c_proj.bias", {c.width});
    b.Add(R::kNorm2Weight, i, h + "ln_2.weight", {c.width});
    b.Add(R::kNorm2Bias, i, h + "ln_2.bias", {c.width});
    b.Add(R::kInnerWeight, i, h + "mlp.c_fc.weight", {c.width, c.inner_width});
    b.Add(R::kInnerBias, i, h + "mlp.c_fc.bias", {c.inner_width});
    b.Add(R::kOuterWeight, i, h + "mlp.c_proj.weight",
          {c.inner_width, c.width});
    b.Add(R::kOuterBias, i, h + "mlp.c_proj.bias", {c.width});
  }

  b.BeginUnit("head");
  b.Add(R::kFinalNormWeight, -1, top + "ln_f.weight", {c.width});
  b.Add(R::kFinalNormBias, -1, top + "ln_f.bias", {c.width});
  if (!c.tied_head) {
    b.Add(R::kHeadWeight, -1, "lm_head.weight", {c.vocabulary, c.width});
  }
  return b.Take();
}

Layout MakeLlamaLayout(const ModelConfig& c) {
  using R = TensorRole;
  LayoutBuilder b;
  const auto linear = [&b](R weight, R bias, int layer, const std::string& name,
                           int64_t in, int64_t out, bool has_bias) {
    b.Add(weight, layer, name + ".weight", {out, in});
    if (has_bias) b.Add(bias, layer, name + ".bias", {out});
  };

  b.BeginUnit("embedding");
  b.Add(R::kTokenEmbedding, -1, "model.embed_tokens.weight",
        {c.vocabulary, c.width});

  for (int i = 0; i < c.layer_count; ++i) {
    b.BeginUnit(absl::StrCat("block.", i));
    const std::string h = absl::StrCat("model.layers.", i, ".");
    b.Add(R::kNorm1Weight, i, h + "input_layernorm.weight", {c.width});
    linear(R::kQueryWeight, R::kQueryBias, i, h + "self_attn.q_proj", c.width,
           c.query_width(), c.qkv_bias);
    linear(R::kKeyWeight, R::kKeyBias, i, h + "self_attn.k_proj", c.width,
           c.key_value_width(), c.qkv_bias);
    linear(R::kValueWeight, R::kValueBias, i, h + "self_attn.v_proj", c.width,
           c.key_value_width(), c.qkv_bias);
    linear(R::kAttentionOutWeight, R::kAttentionOutBias, i,
           h + "self_attn.o_proj", c.query_width(), c.width,
           c.attention_out_bias);
    b.Add(R::kNorm2Weight, i, h + "post_attention_layernorm.weight", {c.width});
    linear(R::kGateWeight, R::kGateBias, i, h + "mlp.gate_proj", c.width,
           c.inner_width, c.inner_bias);
    linear(R::kInnerWeight, R::kInnerBias, i, h + "mlp.up_proj", c.width,
           c.inner_width, c.inner_bias);
    linear(R::kOuterWeight, R::kOuterBias, i, h + "mlp.down_proj",
           c.inner_width, c.width, c.inner_bias);
  }

  b.BeginUnit("head");
  b.Add(R::kFinalNormWeight, -1, "model.norm.weight", {c.width});
  if (!c.tied_head) {
    b.Add(R::kHeadWeight, -1, "lm_head.weight", {c.vocabulary, c.width});
  }
  return b.Take();
}

}  // namespace

Layout MakeLayout(const ModelConfig& c) {
  LS_CHECK(ValidateModelConfig(c).ok());
  return c.is_gpt2() ? MakeGpt2Layout(c) : MakeLlamaLayout(c);
}

int Layout::Find(TensorRole role, int layer) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].role == role && tensors[i].layer == layer) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<FlatRange> CutBuckets(const FlatRange& unit,
                                  int64_t bucket_elements) {
  LS_CHECK(bucket_elements > 0);
  std::vector<FlatRange> buckets;
  for (int64_t done = 0; done < unit.element_count; done += bucket_elements) {
    buckets.push_back({unit.offset + done,
                       std::min(bucket_elements, unit.element_count - done)});
  }
  return buckets;
}

FlatRange PartOf(const FlatRange& range, int64_t size, int64_t index) {
  const int64_t begin = std::min(size * index, range.element_count);
  const int64_t end = std::min(begin + size, range.element_count);
  return {range.offset + begin, end - begin};
}

int64_t ShardSize(int64_t n, int world) {
  return RoundUp((n + world - 1) / world, kTensorAlignment);
}

FlatRange ShardOf(const FlatRange& bucket, int rank, int world) {
  LS_CHECK(0 <= rank && rank < world);
  return PartOf(bucket, ShardSize(bucket.element_count, world), rank);
}

}  // namespace lockstep
