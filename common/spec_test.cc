#include "common/spec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/model_config.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The least that is accepted, but for what a test changes.
v1::JobSpec Sound() {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    model { gpt2 { vocab_size: 256 n_embd: 64 n_layer: 2 n_head: 4 } }
    data { files: "/data/a.txt" format: BYTES sequence_length: 64 }
    batch { global_batch_size: 16 micro_batch_size: 2 }
    schedule { max_steps: 100 peak_learning_rate: 2e-3 }
    output_directory: "/out"
  )",
                                                            &spec));
  return spec;
}

// Merges `text`, a proto in text form, into a sound spec.
v1::JobSpec With(const std::string& text) {
  v1::JobSpec spec = Sound();
  google::protobuf::TextFormat::Parser parser;
  EXPECT_TRUE(parser.MergeFromString(text, &spec)) << text;
  return spec;
}

// The least of a Llama, and what is set over it.
std::string Llama(const std::string& fields) {
  return absl::StrCat(
      "model { llama { vocab_size: 256 hidden_size: 64 num_hidden_layers: 2 "
      "num_attention_heads: 4 intermediate_size: 100 ",
      fields, " } } ");
}

// Sizes of a model in a folder, likewise.
std::string Sizes(const std::string& fields) {
  return absl::StrCat(
      "model { hugging_face_folder: \"/m\" sizes { model_type: \"llama\" "
      "vocab_size: 256 max_position_embeddings: 64 hidden_size: 64 "
      "num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 "
      "head_dim: 16 intermediate_size: 100 ",
      fields, " } } ");
}

std::vector<std::string> FaultsOf(const v1::JobSpec& spec) {
  const auto resolved = ResolveJobSpec(spec);
  if (resolved.ok()) return {};
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
  return absl::StrSplit(resolved.status().message(), '\n');
}

// A field with its bounds as proto text: the bounds are sound, what is beyond
// is not.
struct Bounds {
  const char* path;
  std::string text;  // "$" stands for the value.
  std::vector<std::string> sound;
  std::vector<std::string> faulty;
};

std::vector<Bounds> AllBounds() {
  const std::string kInt32Max = "2147483647";
  const std::vector<std::string> kNotFinite = {"nan", "inf", "-inf"};
  const auto with = [](std::vector<std::string> a,
                       const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  return {
      {"priority", "priority: $", {"-1000", "0", "1000"}, {"-1001", "1001"}},
      {"model.gpt2.vocab_size",
       "data { format: TOKENS_U16 } model { gpt2 { vocab_size: $ } }",
       {"1", "1000000"},
       {"-1", "0", "1000001"}},
      {"model.gpt2.n_positions",
       "data { sequence_length: 1 } model { gpt2 { n_positions: $ } }",
       {"0", "1", "1048576"},
       {"-1", "1048577"}},
      {"model.gpt2.n_embd",
       "model { gpt2 { n_head: 1 n_embd: $ } }",
       {"1", "65536"},
       {"-1", "0", "65537"}},
      {"model.gpt2.n_layer",
       "model { gpt2 { n_layer: $ } }",
       {"1", "1000"},
       {"-1", "0", "1001"}},
      {"model.gpt2.n_head",
       "model { gpt2 { n_embd: 1024 n_head: $ } }",
       {"1", "1024"},
       {"-1", "0", "1025"}},
      {"model.gpt2.n_inner",
       "model { gpt2 { n_inner: $ } }",
       {"0", "1", "1048576"},
       {"-1", "1048577"}},
      {"model.gpt2.layer_norm_epsilon",
       "model { gpt2 { layer_norm_epsilon: $ } }",
       {"0", "1e-12", "0.1"},
       with({"0.99e-12", "0.1001", "-1e-5"}, kNotFinite)},
      {"model.gpt2.initializer_range",
       "model { gpt2 { initializer_range: $ } }",
       {"0", "1e-300", "1"},
       with({"-0.02", "1.001"}, kNotFinite)},
      {"model.llama.vocab_size",
       "data { format: TOKENS_U16 } " + Llama("vocab_size: $"),
       {"1", "1000000"},
       {"-1", "0", "1000001"}},
      {"model.llama.max_position_embeddings",
       "data { sequence_length: 1 } " + Llama("max_position_embeddings: $"),
       {"0", "1", "1073741824"},
       {"-1", "1073741825"}},
      {"model.llama.hidden_size",
       Llama("num_attention_heads: 1 head_dim: 2 hidden_size: $"),
       {"1", "65536"},
       {"-1", "0", "65537"}},
      {"model.llama.num_hidden_layers",
       Llama("num_hidden_layers: $"),
       {"1", "1000"},
       {"-1", "0", "1001"}},
      {"model.llama.num_attention_heads",
       Llama("head_dim: 2 num_attention_heads: $"),
       {"1", "1024"},
       {"-1", "0", "1025"}},
      {"model.llama.num_key_value_heads",
       Llama("num_attention_heads: 1024 head_dim: 2 num_key_value_heads: $"),
       {"0", "1", "1024"},
       {"-1", "1025"}},
      {"model.llama.head_dim",
       Llama("head_dim: $"),
       {"0", "2", "4096"},
       {"-1", "1", "4098"}},
      {"model.llama.intermediate_size",
       Llama("intermediate_size: $"),
       {"1", "1048576"},
       {"-1", "0", "1048577"}},
      {"model.llama.rms_norm_eps",
       Llama("rms_norm_eps: $"),
       {"0", "1e-12", "0.1"},
       with({"0.99e-12", "0.1001", "-1e-5"}, kNotFinite)},
      {"model.llama.rope_theta",
       Llama("rope_theta: $"),
       {"0", "1", "1e12"},
       with({"0.5", "1.001e12", "-1"}, kNotFinite)},
      {"model.llama.initializer_range",
       Llama("initializer_range: $"),
       {"0", "1e-300", "1"},
       with({"-0.02", "1.001"}, kNotFinite)},
      {"data.sequence_length",
       "data { sequence_length: $ }",
       {"1", "1048576"},
       {"-1", "0", "1048577"}},
      {"data.stride", "data { stride: $ }", {"0", "1", kInt32Max}, {"-1"}},
      {"data.order", "data { order: $ }", {"0", "1", "2"}, {"3", "-1"}},
      {"data.format", "data { format: $ }", {"1", "2", "3", "4"}, {"0", "5"}},
      {"data.held_out_fraction",
       "data { held_out_fraction: $ }",
       {"0", "1e-9", "0.5"},
       with({"-0.1", "0.5001"}, kNotFinite)},
      {"data.held_out_samples_max",
       "data { held_out_samples_max: $ }",
       {"0", "1", kInt32Max},
       {"-1"}},
      {"batch.global_batch_size",
       "batch { micro_batch_size: 1 global_batch_size: $ }",
       {"1", "1048576"},
       {"-1", "0", "1048577"}},
      {"batch.micro_batch_size",
       "batch { global_batch_size: 65536 micro_batch_size: $ }",
       {"1", "65536"},
       {"-1", "0", "65537"}},
      {"schedule.max_steps",
       "schedule { max_steps: $ }",
       {"1", "1099511627776"},
       {"-1", "0", "1099511627777"}},
      {"schedule.max_tokens",
       "schedule { max_tokens: $ } batch { global_batch_size: 1048576 }",
       {"1", "1152921504606846976"},
       {"-1", "0", "1152921504606846977"}},
      {"schedule.epochs",
       "schedule { epochs: $ }",
       {"1e-9", "1e6"},
       with({"0", "-1", "1000001"}, kNotFinite)},
      {"schedule.warmup_steps",
       "schedule { epochs: 1 warmup_steps: $ }",
       {"0", "1", "1099511627776"},
       {"-1", "1099511627777"}},
      {"schedule.decay", "schedule { decay: $ }", {"0", "1", "2", "3"}, {"4"}},
      {"schedule.peak_learning_rate",
       "schedule { peak_learning_rate: $ }",
       {"1e-300", "10"},
       with({"0", "-1e-3", "10.01"}, kNotFinite)},
      {"schedule.min_learning_rate",
       "schedule { min_learning_rate: $ }",
       {"0", "2e-3"},
       with({"-1e-9", "2.001e-3"}, kNotFinite)},
      {"schedule.evaluate_every_steps",
       "schedule { evaluate_every_steps: $ }",
       {"0", "1", "1099511627776"},
       {"-1", "1099511627777"}},
      {"optimizer.beta1",
       "optimizer { beta1: $ }",
       {"0", "0.999999"},
       with({"-0.1", "1"}, kNotFinite)},
      {"optimizer.beta2",
       "optimizer { beta2: $ }",
       {"0", "0.999999"},
       with({"-0.1", "1"}, kNotFinite)},
      {"optimizer.epsilon",
       "optimizer { epsilon: $ }",
       {"1e-300", "1"},
       with({"0", "-1e-8", "1.001"}, kNotFinite)},
      {"optimizer.weight_decay",
       "optimizer { weight_decay: $ }",
       {"0", "10"},
       with({"-0.1", "10.01"}, kNotFinite)},
      {"optimizer.clip_norm",
       "optimizer { clip_norm: $ }",
       {"0", "1e-300", "1e300"},
       with({"-1"}, kNotFinite)},
      {"numerics.seed",
       "numerics { seed: $ }",
       {"0", "9007199254740992"},
       {"-1", "9007199254740993"}},
      {"numerics.dropout",
       "numerics { dropout: $ }",
       {"0"},
       with({"-0.1", "1"}, kNotFinite)},
      {"numerics.precision",
       "numerics { precision: $ }",
       {"0", "1", "2"},
       {"3"}},
      {"numerics.reduction", "numerics { reduction: $ }", {"0", "1"}, {"4"}},
      {"parallel.min_workers",
       "batch { global_batch_size: 8192 } parallel { min_workers: $ }",
       {"0", "1", "4096"},
       {"-1", "4097"}},
      {"parallel.max_workers",
       "parallel { max_workers: $ }",
       {"0", "1", "4096"},
       {"-1", "4097"}},
      {"parallel.zero_stage",
       "parallel { zero_stage: $ }",
       {"0", "1", "3"},
       {"-1", "4"}},
      {"parallel.bucket_bytes",
       "parallel { bucket_bytes: $ }",
       {"0", "1024", kInt32Max},
       {"-1", "1023"}},
      {"checkpoint.every_steps",
       "checkpoint { every_steps: $ }",
       {"0", "1", "1099511627776"},
       {"-1", "1099511627777"}},
      {"checkpoint.every_minutes",
       "checkpoint { every_minutes: $ }",
       {"0", "0.01", "1e6"},
       {"-1", "1.1e6", "nan", "inf"}},
      {"checkpoint.keep",
       "checkpoint { keep: $ }",
       {"0", "1", "1000000"},
       {"-1", "1000001"}},
      {"numerics.non_finite",
       "numerics { non_finite: $ }",
       {"0", "1", "2"},
       {"3", "-1"}},
      {"numerics.skipped_steps_max",
       "numerics { skipped_steps_max: $ }",
       {"0", "1", "1000000"},
       {"-1", "1000001"}},
      {"parallel.recompute",
       "parallel { recompute: $ }",
       {"0", "1", "2"},
       {"3", "-1"}},
      {"parallel.failures_max",
       "parallel { failures_max: $ }",
       {"0", "1000"},
       {"-1", "1001"}},
      {"model.sizes.vocab_size",
       "data { format: TOKENS_U16 } " + Sizes("vocab_size: $"),
       {"1", "1000000"},
       {"-1", "0", "1000001"}},
      {"model.sizes.max_position_embeddings",
       "data { sequence_length: 1 } " + Sizes("max_position_embeddings: $"),
       {"1", "1073741824"},
       {"-1", "0", "1073741825"}},
      {"model.sizes.hidden_size",
       Sizes("hidden_size: $"),
       {"1", "65536"},
       {"-1", "0", "65537"}},
      {"model.sizes.num_hidden_layers",
       Sizes("num_hidden_layers: $"),
       {"1", "1000"},
       {"-1", "0", "1001"}},
      {"model.sizes.num_attention_heads",
       Sizes("num_attention_heads: $"),
       {"2", "1024"},
       {"-1", "0", "1025"}},
      {"model.sizes.num_key_value_heads",
       Sizes("num_attention_heads: 1024 num_key_value_heads: $"),
       {"1", "1024"},
       {"-1", "0", "1025"}},
      {"model.sizes.head_dim",
       Sizes("head_dim: $"),
       {"2", "4096"},
       {"-1", "0", "65537"}},
      {"model.sizes.intermediate_size",
       Sizes("intermediate_size: $"),
       {"1", "1048576"},
       {"-1", "0", "1048577"}},
  };
}

TEST(SpecTest, EveryBoundIsSoundAndWhatIsBeyondIsOneFault) {
  for (const Bounds& bounds : AllBounds()) {
    for (const bool sound : {true, false}) {
      for (const std::string& value : sound ? bounds.sound : bounds.faulty) {
        std::string text = bounds.text;
        text.replace(text.find('$'), 1, value);
        SCOPED_TRACE(text);
        const auto faults = FaultsOf(With(text));
        if (sound) {
          EXPECT_THAT(faults, ElementsAre());
        } else {
          EXPECT_THAT(faults,
                      ElementsAre(AllOf(
                          HasSubstr(absl::StrCat(bounds.path, ": expected ")),
                          HasSubstr(", got "))));
        }
      }
    }
  }
}

// A field that the table above forgets would go unchecked.
TEST(SpecTest, TheTableHasEveryNumberOfTheSpec) {
  std::vector<std::string> missing;
  const auto bounds = AllBounds();
  const auto walk = [&](auto&& self, const google::protobuf::Descriptor* type,
                        const std::string& prefix) -> void {
    for (int i = 0; i < type->field_count(); ++i) {
      const auto* field = type->field(i);
      const std::string path = prefix + field->name();
      if (field->message_type() != nullptr) {
        self(self, field->message_type(), path + ".");
        continue;
      }
      using Field = google::protobuf::FieldDescriptor;
      if (field->cpp_type() == Field::CPPTYPE_STRING ||
          field->cpp_type() == Field::CPPTYPE_BOOL) {
        continue;
      }
      const bool listed =
          std::any_of(bounds.begin(), bounds.end(),
                      [&](const Bounds& b) { return b.path == path; });
      if (!listed) missing.push_back(path);
    }
  };
  walk(walk, v1::JobSpec::descriptor(), "");
  EXPECT_THAT(missing, ElementsAre());
}

TEST(SpecTest, RulesBetweenFields) {
  struct {
    std::string text;
    const char* fault;  // Null: sound.
  } const kCases[] = {
      {"batch { global_batch_size: 16 micro_batch_size: 16 }", nullptr},
      {"batch { global_batch_size: 16 micro_batch_size: 3 }",
       "batch.global_batch_size: expected a multiple of micro_batch_size=3, "
       "got 16"},
      {"batch { global_batch_size: 16 micro_batch_size: 32 }",
       "batch.global_batch_size: expected a multiple of micro_batch_size=32, "
       "got 16"},
      {R"(data { mask_files: "/m" })", nullptr},
      {R"(data { mask_files: "/m" mask_files: "/n" })",
       "data.mask_files: expected none, or one for each of data.files, 1, got "
       "2"},
      {R"(data { mask_files: "m" })",
       "data.mask_files[0]: expected an absolute path, got \"m\""},
      {"model { gpt2 { n_positions: 64 } }", nullptr},
      {"model { gpt2 { n_positions: 63 } }",
       "model.gpt2.n_positions: expected at least data.sequence_length=64, "
       "got 63"},
      {"model { gpt2 { n_head: 3 } }",
       "model.gpt2.n_embd: expected a multiple of n_head=3, got 64"},
      {"model { gpt2 { vocab_size: 255 } }",
       "model.gpt2.vocab_size: expected at least 256 (data.format is BYTES), "
       "got 255"},
      {"model { gpt2 { vocab_size: 255 } } data { format: TOKENS_U32 }",
       nullptr},
      {Llama("max_position_embeddings: 63"),
       "model.llama.max_position_embeddings: expected at least "
       "data.sequence_length=64, got 63"},
      {Llama("num_key_value_heads: 3"),
       "model.llama.num_key_value_heads: expected a divisor of "
       "num_attention_heads=4, got 3"},
      {Llama("hidden_size: 60"),
       "model.llama.hidden_size: expected a multiple of 2 x "
       "num_attention_heads=8, or a head_dim, got 60"},
      {Llama("hidden_size: 60 head_dim: 8"), nullptr},
      {Llama("head_dim: 7"),
       "model.llama.head_dim: expected an even number, got 7"},
      {Sizes(""), nullptr},
      {Sizes("model_type: \"mamba\""),
       "model.sizes.model_type: expected gpt2, llama, qwen2, got \"mamba\""},
      {Sizes("model_type: \"gpt2\" num_key_value_heads: 4"), nullptr},
      {Sizes("model_type: \"gpt2\""),
       "model.sizes: expected those of a model, got a GPT-2 has as many keys "
       "as queries"},
      {Sizes("head_dim: 3"),
       "model.sizes: expected those of a model, got head_dim: expected an even "
       "number, got 3"},
      {Sizes("num_attention_heads: 3"),
       "model.sizes: expected those of a model, got num_attention_heads: "
       "expected a multiple of num_key_value_heads=2, got 3"},
      {Sizes("max_position_embeddings: 63"),
       "model.sizes.max_position_embeddings: expected at least "
       "data.sequence_length=64, got 63"},
      {"model { sizes { } }",
       "model.sizes: expected nothing (only a folder's model has its sizes "
       "elsewhere), got sizes"},
      {"schedule { warmup_steps: 100 }", nullptr},
      {"schedule { warmup_steps: 101 }",
       "schedule.warmup_steps: expected at most the job's steps, 100, got 101"},
      // 1,024 tokens a step: 1,025 are two steps.
      {"schedule { max_tokens: 1025 warmup_steps: 2 }", nullptr},
      {"schedule { max_tokens: 1125899906842625 }",
       "schedule.max_tokens: expected at most 1099511627776 steps of tokens, "
       "got 1125899906842625"},
      {"schedule { max_tokens: 1024 warmup_steps: 2 }",
       "schedule.warmup_steps: expected at most the job's steps, 1, got 2"},
      {"schedule { min_learning_rate: 0.01 }",
       "schedule.min_learning_rate: expected 0 to peak_learning_rate=0.002, "
       "got 0.01"},
      {"parallel { min_workers: 2 max_workers: 2 }", nullptr},
      {"parallel { min_workers: 3 max_workers: 2 }",
       "parallel.max_workers: expected at least min_workers=3, got 2"},
      {"parallel { min_workers: 8 max_workers: 100 }", nullptr},
      {"parallel { min_workers: 9 }",
       "parallel.min_workers: expected at most the micro-batches of a step, 8, "
       "got 9"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    const auto faults = FaultsOf(With(c.text));
    if (c.fault == nullptr) {
      EXPECT_THAT(faults, ElementsAre());
    } else {
      EXPECT_THAT(faults, ElementsAre(c.fault));
    }
  }
}

TEST(SpecTest, WhatCannotRunYetIsRefusedByName) {
  EXPECT_THAT(FaultsOf(With("numerics { reduction: REDUCTION_FLOAT32 }")),
              ElementsAre("numerics.reduction: expected EXACT (the only one in "
                          "this version), got REDUCTION_FLOAT32"));
}

TEST(SpecTest, AnEmptySpecLacksEverythingThatIsRequired) {
  EXPECT_THAT(
      FaultsOf(v1::JobSpec()),
      ElementsAre(
          "model: expected one of gpt2, hugging_face_folder, llama, checkpoint "
          "(required), got "
          "nothing",
          "data.files: expected 1 to 10000 paths (required), got nothing",
          "data.format: expected BYTES, TOKENS_U16, TOKENS_U32 or LLM_C "
          "(required), "
          "got nothing",
          "data.sequence_length: expected 1 to 1048576 (required), got 0",
          "batch.global_batch_size: expected 1 to 1048576 (required), got 0",
          "batch.micro_batch_size: expected 1 to 65536 (required), got 0",
          "schedule: expected one of max_steps, max_tokens, epochs (required), "
          "got nothing",
          "schedule.peak_learning_rate: expected above 0, to 10 (required), "
          "got 0",
          "output_directory: expected an absolute path (required), got "
          "nothing"));
}

TEST(SpecTest, EveryDefaultIsFilledIn) {
  v1::JobSpec expected = Sound();
  google::protobuf::TextFormat::Parser parser;
  ASSERT_TRUE(parser.MergeFromString(R"(
    display_name: "untitled"
    model { gpt2 { n_positions: 64 n_inner: 256 layer_norm_epsilon: 1e-5
                   initializer_range: 0.02 tie_word_embeddings: true } }
    data { stride: 64 order: PERMUTED }
    schedule { decay: COSINE }
    optimizer { beta1: 0.9 beta2: 0.95 epsilon: 1e-8 weight_decay: 0.1
                clip_norm: 1 }
    numerics { precision: FLOAT32 reduction: EXACT non_finite: SKIP
               skipped_steps_max: 5 }
    parallel { min_workers: 1 max_workers: 1 bucket_bytes: 26214400
               overlap: true failures_max: 5 recompute: NONE }
    checkpoint { every_minutes: 10 keep: 2 }
  )",
                                     &expected));

  const auto resolved = ResolveJobSpec(Sound());

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->DebugString(), expected.DebugString());
  const auto again = ResolveJobSpec(*resolved);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->DebugString(), resolved->DebugString());
}

TEST(SpecTest, WhatIsSetWinsOverItsDefault) {
  const v1::JobSpec spec = With(R"(
    display_name: "mine"
    model { gpt2 { n_positions: 100 n_inner: 7 layer_norm_epsilon: 1e-6
                   initializer_range: 0.5 tie_word_embeddings: false } }
    data { stride: 3 order: SEQUENTIAL held_out_fraction: 0.1
           held_out_samples_max: 9 }
    schedule { decay: LINEAR }
    optimizer { beta1: 0 beta2: 0 epsilon: 1 weight_decay: 0 clip_norm: 0 }
    numerics { seed: 7 precision: FLOAT32 reduction: EXACT non_finite: STOP
               skipped_steps_max: 9 }
    parallel { min_workers: 2 max_workers: 3 bucket_bytes: 4096 overlap: false
               failures_max: 0 recompute: BLOCK }
    checkpoint { every_steps: 5 every_minutes: 0 keep: 1 }
  )");

  const auto resolved = ResolveJobSpec(spec);

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->DebugString(), spec.DebugString());
}

TEST(SpecTest, PathsAreAbsoluteAndNormalised) {
  v1::JobSpec spec = Sound();
  spec.clear_model();
  spec.mutable_data()->set_files(0, "//data/./a b.txt");
  spec.mutable_model()->set_hugging_face_folder("/models//gpt2/");
  spec.set_output_directory("/out/.hidden/..x/");

  const auto resolved = ResolveJobSpec(spec);

  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->data().files(0), "/data/a b.txt");
  EXPECT_EQ(resolved->model().hugging_face_folder(), "/models/gpt2");
  EXPECT_EQ(resolved->output_directory(), "/out/.hidden/..x");

  const struct {
    std::string path;
    const char* expected;
  } kFaulty[] = {
      {"", "an absolute path (required), got nothing"},
      {"a.txt", "an absolute path, got \"a.txt\""},
      {"/a/../b", "a path without \"..\", got \"/a/../b\""},
      {"/a/..", "a path without \"..\", got \"/a/..\""},
      {std::string("/a\0b", 4), "a path of printable UTF-8, got \"/a\\000b\""},
      {"/a\nb", "a path of printable UTF-8, got \"/a\\nb\""},
      {"/" + std::string(4095, 'x'), "at most 4095 bytes, got 4096 bytes"},
  };
  for (const auto& c : kFaulty) {
    v1::JobSpec faulty = spec;
    faulty.mutable_data()->add_files(c.path);
    faulty.mutable_model()->set_hugging_face_folder(c.path);
    faulty.set_output_directory(c.path);
    EXPECT_THAT(
        FaultsOf(faulty),
        ElementsAre(
            absl::StrCat("model.hugging_face_folder: expected ", c.expected),
            absl::StrCat("data.files[1]: expected ", c.expected),
            absl::StrCat("output_directory: expected ", c.expected)));
  }
  spec.set_output_directory("/./");
  EXPECT_THAT(FaultsOf(spec), ElementsAre("output_directory: expected a folder "
                                          "of the job's own, got \"/\""));
}

TEST(SpecTest, DisplayNameIsShortAndPrintable) {
  v1::JobSpec spec = Sound();
  spec.set_display_name(std::string(100, 'x'));
  EXPECT_THAT(FaultsOf(spec), ElementsAre());
  spec.set_display_name(std::string(101, 'x'));
  EXPECT_THAT(
      FaultsOf(spec),
      ElementsAre("display_name: expected at most 100 bytes, got 101 bytes"));
  spec.set_display_name("a\x1B[2Jb");
  EXPECT_THAT(
      FaultsOf(spec),
      ElementsAre(
          "display_name: expected printable UTF-8, got \"a\\033[2Jb\""));
}

TEST(SpecTest, TooManyFilesAreOneFault) {
  v1::JobSpec spec = Sound();
  for (int i = 1; i < 10'000; ++i) spec.mutable_data()->add_files("/f");
  EXPECT_THAT(FaultsOf(spec), ElementsAre());
  spec.mutable_data()->add_files("/f");
  EXPECT_THAT(FaultsOf(spec), ElementsAre("data.files: expected 1 to 10000 "
                                          "paths (required), got 10001"));
}

TEST(SpecTest, FaultsFitAGrpcStatus) {
  v1::JobSpec spec = Sound();
  for (int i = 0; i < 5000; ++i) {
    spec.mutable_data()->add_files(std::string(3000, '\x01'));
  }

  const auto resolved = ResolveJobSpec(spec);

  ASSERT_FALSE(resolved.ok());
  EXPECT_LT(resolved.status().message().size(), 4100u);
  EXPECT_THAT(std::string(resolved.status().message()), HasSubstr("\nand 49"));
}

TEST(SpecTest, AFieldThatThisVersionDoesNotKnowIsNotIgnored) {
  v1::JobSpec spec = Sound();
  auto* optimizer = spec.mutable_optimizer();
  optimizer->GetReflection()->MutableUnknownFields(optimizer)->AddVarint(99, 1);
  spec.GetReflection()->MutableUnknownFields(&spec)->AddVarint(98, 1);

  EXPECT_THAT(FaultsOf(spec),
              ElementsAre(HasSubstr("spec: expected only fields that this "
                                    "version knows, got field number 98"),
                          HasSubstr("optimizer: expected only fields that this "
                                    "version knows, got field number 99")));
}

TEST(SpecTest, CountsOfAStep) {
  const v1::JobSpec spec = With("batch { global_batch_size: 24 }");
  EXPECT_EQ(MicroBatchesPerStep(spec), 12);
  EXPECT_EQ(TokensPerStep(spec), 24 * 64);
  const v1::JobSpec huge = With(
      "batch { global_batch_size: 1048576 } data { sequence_length: 1048576 }");
  EXPECT_EQ(TokensPerStep(huge), int64_t{1} << 40);
}

TEST(SpecTest, LengthIsRoundedUpToWholeSteps) {
  EXPECT_TRUE(KnowsMaxSteps(Sound()));
  EXPECT_EQ(*MaxSteps(Sound(), 0), 100);

  struct {
    const char* text;
    int64_t samples;
    int64_t steps;
  } const kCases[] = {
      {"schedule { max_tokens: 1 }", 0, 1},
      {"schedule { max_tokens: 1024 }", 0, 1},
      {"schedule { max_tokens: 1025 }", 0, 2},
      {"schedule { max_tokens: 1125899906842624 }", 0, int64_t{1} << 40},
      {"schedule { epochs: 1 }", 16, 1},
      {"schedule { epochs: 1 }", 17, 2},
      {"schedule { epochs: 3 }", 1000, 188},
      {"schedule { epochs: 1e-9 }", 5, 1},
      {"schedule { epochs: 0.1 }", 160, 1},
      {"schedule { epochs: 0.5 }", int64_t{1} << 45, int64_t{1} << 40},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(*MaxSteps(With(c.text), c.samples), c.steps) << c.text;
  }
  EXPECT_FALSE(KnowsMaxSteps(With("schedule { epochs: 1 }")));
  EXPECT_FALSE(
      MaxSteps(With("schedule { epochs: 1e6 }"), int64_t{1} << 60).ok());
}

TEST(SpecTest, ModelConfigIsTheResolvedGpt2) {
  const auto resolved = ResolveJobSpec(
      With("model { gpt2 { n_positions: 65 n_inner: 9 initializer_range: 0.5 "
           "layer_norm_epsilon: 1e-6 tie_word_embeddings: false } }"));
  ASSERT_TRUE(resolved.ok()) << resolved.status();

  const ModelConfig config = ToModelConfig(resolved->model().gpt2());

  ModelConfig expected;
  expected.vocabulary = 256;
  expected.position_max = 65;
  expected.width = 64;
  expected.layer_count = 2;
  expected.SetPlainHeads(4);
  expected.inner_width = 9;
  expected.norm_epsilon = 1e-6;
  expected.initializer_range = 0.5;
  expected.tied_head = false;
  EXPECT_EQ(config, expected);
  EXPECT_TRUE(ValidateModelConfig(config).ok());
}

TEST(SpecTest, ModelConfigIsTheResolvedLlama) {
  const auto resolved = ResolveJobSpec(With(Llama("num_key_value_heads: 2")));
  ASSERT_TRUE(resolved.ok()) << resolved.status();

  const ModelConfig config = ToModelConfig(resolved->model().llama());

  ModelConfig expected;
  expected.family = ModelFamily::kLlama;
  expected.vocabulary = 256;
  expected.position_max = 64;
  expected.width = 64;
  expected.layer_count = 2;
  expected.head_count = 4;
  expected.key_value_head_count = 2;
  expected.head_width = 16;
  expected.inner_width = 100;
  expected.norm_epsilon = 1e-5;
  expected.initializer_range = 0.02;
  expected.tied_head = false;
  EXPECT_EQ(config, expected);
  EXPECT_TRUE(ValidateModelConfig(config).ok());
  EXPECT_EQ(
      ToModelConfig(
          ResolveJobSpec(
              With(Llama("max_position_embeddings: 65 head_dim: 8 "
                         "rms_norm_eps: 1e-6 rope_theta: 5 "
                         "initializer_range: 0.5 tie_word_embeddings: true")))
              ->model()
              .llama())
          .head_width,
      8);
}

TEST(SpecTest, SizesAreThoseOfTheModel) {
  ModelConfig gpt2 = {.vocabulary = 256,
                      .position_max = 65,
                      .width = 64,
                      .layer_count = 2,
                      .inner_width = 9,
                      .tied_head = false};
  gpt2.SetPlainHeads(4);
  ModelConfig llama = {.family = ModelFamily::kLlama,
                       .vocabulary = 256,
                       .position_max = 65,
                       .width = 64,
                       .layer_count = 2,
                       .head_count = 4,
                       .key_value_head_count = 2,
                       .head_width = 12,
                       .inner_width = 100,
                       .qkv_bias = true,
                       .attention_out_bias = true,
                       .inner_bias = true};
  ModelConfig qwen2 = llama;
  qwen2.family = ModelFamily::kQwen2;
  qwen2.attention_out_bias = qwen2.inner_bias = false;
  for (const ModelConfig& config : {gpt2, llama, qwen2}) {
    EXPECT_EQ(ToModelConfig(ToModelSizes(config)), config);
    // Each size is there once.
    v1::JobSpec spec = With("model { hugging_face_folder: \"/m\" }");
    *spec.mutable_model()->mutable_sizes() = ToModelSizes(config);
    EXPECT_THAT(FaultsOf(spec), ElementsAre());
  }
}

TEST(SpecTest, HowAJobIsSpreadDecidesNoBits) {
  const std::string none = WhatDecidesBits(With("")).SerializeAsString();
  for (const char* changes_nothing :
       {"display_name: \"x\"", "priority: 3", "output_directory: \"/x\"",
        "checkpoint { every_steps: 5 }", "parallel { zero_stage: 2 }",
        "parallel { min_workers: 3 }", "model { sizes { vocab_size: 3 } }"}) {
    EXPECT_EQ(WhatDecidesBits(With(changes_nothing)).SerializeAsString(), none)
        << changes_nothing;
  }
  for (const char* changes_something :
       {"numerics { seed: 3 }", "batch { micro_batch_size: 4 }",
        "data { files: \"/data/b\" }", "schedule { max_steps: 99 }",
        "optimizer { beta1: 0.5 }", "model { gpt2 { n_layer: 3 } }"}) {
    EXPECT_NE(WhatDecidesBits(With(changes_something)).SerializeAsString(),
              none)
        << changes_something;
  }
}

}  // namespace
}  // namespace lockstep
