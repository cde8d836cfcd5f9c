#include "common/spec.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/printable.h"
#include "common/schedule.h"

namespace lockstep {
namespace {

constexpr int64_t kInt32Max = (int64_t{1} << 31) - 1;
constexpr int64_t kStepsMax = int64_t{1} << 40;
constexpr int64_t kSequenceLengthMax = 1 << 20;

// Linux opens no longer path (PATH_MAX, with the NUL).
constexpr size_t kPathBytesMax = 4095;

// A message and its details must fit the headers of a gRPC response (8 KiB).
constexpr size_t kFaultBytesMax = 4000;

std::string IntRange(int64_t min, int64_t max) {
  return absl::StrCat(min, " to ", max);
}

// What is wrong with a spec, a line each.
class Faults {
 public:
  void Add(absl::string_view path, absl::string_view expected,
           absl::string_view got) {
    std::string line =
        absl::StrCat(path, ": expected ", expected, ", got ", got);
    if (bytes_ + line.size() > kFaultBytesMax) {
      ++left_out_;
      return;
    }
    bytes_ += line.size();
    lines_.push_back(std::move(line));
  }

  absl::Status ToStatus() const {
    if (lines_.empty()) return absl::OkStatus();
    std::string message = absl::StrJoin(lines_, "\n");
    if (left_out_ > 0) absl::StrAppend(&message, "\nand ", left_out_, " more");
    return absl::InvalidArgumentError(message);
  }

 private:
  std::vector<std::string> lines_;
  size_t bytes_ = 0;
  int64_t left_out_ = 0;
};

// What is in the proto, and sound, but cannot run in this version: the one list
// of it.
struct Refusal {
  const char* path;
  bool (*asked)(const v1::JobSpec& spec);
  const char* expected;
  std::string (*got)(const v1::JobSpec& spec);
};

constexpr Refusal kRefusals[] = {
    {"numerics.reduction",
     [](const v1::JobSpec& spec) {
       return spec.numerics().reduction() ==
                  v1::NumericsSpec::REDUCTION_FLOAT32 ||
              spec.numerics().reduction() ==
                  v1::NumericsSpec::REDUCTION_BFLOAT16;
     },
     "EXACT (the only one in this version)",
     [](const v1::JobSpec& spec) {
       return v1::NumericsSpec::Reduction_Name(spec.numerics().reduction());
     }},
};

// Empty components and "." go: the same file has the same name.
std::string NormalPath(absl::string_view path) {
  std::string normal;
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (!part.empty() && part != ".") absl::StrAppend(&normal, "/", part);
  }
  return normal.empty() ? "/" : normal;
}

// Checks and completes one spec.  A field that is faulty keeps its value, and
// rules between fields apply only where each of them is sound: one mistake is
// one line.
class Resolver {
 public:
  explicit Resolver(const v1::JobSpec& spec) : spec_(spec) {}

  absl::StatusOr<v1::JobSpec> Run() {
    Unknown(spec_, "");
    General();
    Model();
    Data();
    Batch();
    Schedule();
    Optimizer();
    Numerics();
    Parallel();
    Checkpoint();
    OutputDirectory();
    for (const Refusal& refusal : kRefusals) {
      if (refusal.asked(spec_)) {
        faults_.Add(refusal.path, refusal.expected, refusal.got(spec_));
      }
    }
    absl::Status status = faults_.ToStatus();
    if (!status.ok()) return status;
    return std::move(spec_);
  }

 private:
  // A field that a newer client knows would be ignored in silence.
  void Unknown(const google::protobuf::Message& message,
               const std::string& path) {
    const auto* reflection = message.GetReflection();
    const auto& unknown = reflection->GetUnknownFields(message);
    for (int i = 0; i < unknown.field_count(); ++i) {
      faults_.Add(path.empty() ? "spec" : path,
                  "only fields that this version knows",
                  absl::StrCat("field number ", unknown.field(i).number(),
                               " (is the coordinator older than the client?)"));
    }
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    reflection->ListFields(message, &fields);
    for (const auto* field : fields) {
      if (field->cpp_type() !=
              google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE ||
          field->is_repeated()) {
        continue;
      }
      Unknown(reflection->GetMessage(message, field),
              absl::StrCat(path, path.empty() ? "" : ".", field->name()));
    }
  }

  bool Int(absl::string_view path, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return true;
    faults_.Add(path, IntRange(min, max), absl::StrCat(value));
    return false;
  }

  // As Int, for a field without a default: absent, it reads as 0.
  bool RequiredInt(absl::string_view path, int64_t value, int64_t min,
                   int64_t max) {
    if (value != 0) return Int(path, value, min, max);
    faults_.Add(path, absl::StrCat(IntRange(min, max), " (required)"), "0");
    return false;
  }

  // `sound` must be false for what is not a number.
  bool Double(absl::string_view path, double value, bool sound,
              absl::string_view expected) {
    if (sound && std::isfinite(value)) return true;
    faults_.Add(path, expected, DoubleText(value));
    return false;
  }

  // Checks and normalises.
  bool Path(absl::string_view path, std::string* value) {
    const auto fault = [&](absl::string_view expected, std::string got) {
      faults_.Add(path, expected, got);
      return false;
    };
    if (value->empty()) return fault("an absolute path (required)", "nothing");
    if ((*value)[0] != '/') return fault("an absolute path", Quoted(*value));
    if (!IsPrintableUtf8(*value)) {
      return fault("a path of printable UTF-8", Quoted(*value));
    }
    if (value->size() > kPathBytesMax) {
      return fault(absl::StrCat("at most ", kPathBytesMax, " bytes"),
                   absl::StrCat(value->size(), " bytes"));
    }
    for (absl::string_view part : absl::StrSplit(*value, '/')) {
      if (part == "..") return fault("a path without \"..\"", Quoted(*value));
    }
    *value = NormalPath(*value);
    return true;
  }

  void General() {
    std::string* name = spec_.mutable_display_name();
    if (name->empty()) *name = "untitled";
    if (name->size() > 100) {
      faults_.Add("display_name", "at most 100 bytes",
                  absl::StrCat(name->size(), " bytes"));
    } else if (!IsPrintableUtf8(*name)) {
      faults_.Add("display_name", "printable UTF-8", Quoted(*name));
    }
    Int("priority", spec_.priority(), -1000, 1000);
  }

  void OutputDirectory() {
    std::string* output = spec_.mutable_output_directory();
    if (Path("output_directory", output) && *output == "/") {
      faults_.Add("output_directory", "a folder of the job's own", "\"/\"");
    }
  }

  void Model() {
    constexpr absl::string_view kOneOf =
        "one of gpt2, hugging_face_folder, llama, checkpoint (required)";
    v1::ModelSpec& model = *spec_.mutable_model();
    switch (model.source_case()) {
      case v1::ModelSpec::kGpt2:
        Gpt2(model.mutable_gpt2());
        break;
      case v1::ModelSpec::kLlama:
        Llama(model.mutable_llama());
        break;
      case v1::ModelSpec::kHuggingFaceFolder:
        Path("model.hugging_face_folder", model.mutable_hugging_face_folder());
        break;
      case v1::ModelSpec::kCheckpoint:
        Path("model.checkpoint.folder",
             model.mutable_checkpoint()->mutable_folder());
        break;
      case v1::ModelSpec::SOURCE_NOT_SET:
        faults_.Add("model", kOneOf, "nothing");
        break;
    }
    if (model.has_sizes()) Sizes(model);
  }

  void Sizes(const v1::ModelSpec& model) {
    if (!model.has_hugging_face_folder() && !model.has_checkpoint()) {
      faults_.Add("model.sizes",
                  "nothing (only a folder's model has its sizes elsewhere)",
                  "sizes");
      return;
    }
    const v1::ModelSizes& sizes = model.sizes();
    std::vector<absl::string_view> types;
    for (const ModelFamily f : kModelFamilies) types.push_back(FamilyName(f));
    if (std::find(types.begin(), types.end(), sizes.model_type()) ==
        types.end()) {
      faults_.Add("model.sizes.model_type", absl::StrJoin(types, ", "),
                  Quoted(sizes.model_type()));
      return;
    }
    Vocabulary("model.sizes.vocab_size", sizes.vocab_size());
    if (RequiredInt("model.sizes.max_position_embeddings",
                    sizes.max_position_embeddings(), 1, 1 << 30)) {
      LongestSequence("model.sizes.max_position_embeddings",
                      sizes.max_position_embeddings(), 1 << 30);
    }
    bool sound =
        RequiredInt("model.sizes.hidden_size", sizes.hidden_size(), 1, 1 << 16);
    sound &= RequiredInt("model.sizes.num_hidden_layers",
                         sizes.num_hidden_layers(), 1, 1000);
    sound &= RequiredInt("model.sizes.num_attention_heads",
                         sizes.num_attention_heads(), 1, 1024);
    sound &= RequiredInt("model.sizes.num_key_value_heads",
                         sizes.num_key_value_heads(), 1, 1024);
    sound &= RequiredInt("model.sizes.head_dim", sizes.head_dim(), 1, 1 << 16);
    sound &= RequiredInt("model.sizes.intermediate_size",
                         sizes.intermediate_size(), 1, 1 << 20);
    if (!sound || !faults_.ToStatus().ok()) return;
    // What the fields are to each other.
    if (const absl::Status status = ValidateModelConfig(ToModelConfig(sizes));
        !status.ok()) {
      faults_.Add("model.sizes", "those of a model",
                  std::string(status.message()));
    }
  }

  void Vocabulary(absl::string_view path, int64_t vocab_size) {
    if (RequiredInt(path, vocab_size, 1, 1'000'000) &&
        spec_.data().format() == v1::DataSpec::BYTES && vocab_size < 256) {
      faults_.Add(path, "at least 256 (data.format is BYTES)",
                  absl::StrCat(vocab_size));
    }
  }

  // Of 0 the default is for the caller to fill in.
  void LongestSequence(absl::string_view path, int64_t value, int64_t max) {
    if (value != 0 && Int(path, value, 1, max) && SequenceLengthSound() &&
        value < spec_.data().sequence_length()) {
      faults_.Add(path,
                  absl::StrCat("at least data.sequence_length=",
                               spec_.data().sequence_length()),
                  absl::StrCat(value));
    }
  }

  void Epsilon(absl::string_view path, double value) {
    Double(path, value, value >= 1e-12 && value <= 0.1, "1e-12 to 0.1");
  }

  void InitializerRange(absl::string_view path, double value) {
    Double(path, value, value > 0 && value <= 1, "above 0, to 1");
  }

  void Llama(v1::LlamaConfig* llama) {
    Vocabulary("model.llama.vocab_size", llama->vocab_size());
    LongestSequence("model.llama.max_position_embeddings",
                    llama->max_position_embeddings(), 1 << 30);
    if (llama->max_position_embeddings() == 0) {
      llama->set_max_position_embeddings(spec_.data().sequence_length());
    }
    const bool width_sound = RequiredInt("model.llama.hidden_size",
                                         llama->hidden_size(), 1, 1 << 16);
    RequiredInt("model.llama.num_hidden_layers", llama->num_hidden_layers(), 1,
                1000);
    const bool heads_sound = RequiredInt("model.llama.num_attention_heads",
                                         llama->num_attention_heads(), 1, 1024);
    if (llama->num_key_value_heads() == 0) {
      llama->set_num_key_value_heads(llama->num_attention_heads());
    } else if (Int("model.llama.num_key_value_heads",
                   llama->num_key_value_heads(), 1, 1024) &&
               heads_sound &&
               llama->num_attention_heads() % llama->num_key_value_heads() !=
                   0) {
      faults_.Add("model.llama.num_key_value_heads",
                  absl::StrCat("a divisor of num_attention_heads=",
                               llama->num_attention_heads()),
                  absl::StrCat(llama->num_key_value_heads()));
    }
    if (llama->head_dim() != 0) {
      if (Int("model.llama.head_dim", llama->head_dim(), 2, 1 << 12) &&
          llama->head_dim() % 2 != 0) {
        faults_.Add("model.llama.head_dim", "an even number",
                    absl::StrCat(llama->head_dim()));
      }
    } else if (width_sound && heads_sound) {
      const int width = llama->hidden_size() / llama->num_attention_heads();
      if (llama->hidden_size() % llama->num_attention_heads() != 0 ||
          width % 2 != 0) {
        faults_.Add(
            "model.llama.hidden_size",
            absl::StrCat("a multiple of 2 x num_attention_heads=",
                         2 * llama->num_attention_heads(), ", or a head_dim"),
            absl::StrCat(llama->hidden_size()));
      } else {
        llama->set_head_dim(width);
      }
    }
    RequiredInt("model.llama.intermediate_size", llama->intermediate_size(), 1,
                1 << 20);
    if (llama->rms_norm_eps() == 0) llama->set_rms_norm_eps(1e-5);
    Epsilon("model.llama.rms_norm_eps", llama->rms_norm_eps());
    if (llama->rope_theta() == 0) llama->set_rope_theta(10000);
    Double("model.llama.rope_theta", llama->rope_theta(),
           llama->rope_theta() >= 1 && llama->rope_theta() <= 1e12,
           "1 to 1e12");
    if (llama->initializer_range() == 0) llama->set_initializer_range(0.02);
    InitializerRange("model.llama.initializer_range",
                     llama->initializer_range());
    if (!llama->has_tie_word_embeddings()) {
      llama->set_tie_word_embeddings(false);
    }
  }

  void Gpt2(v1::Gpt2Config* gpt2) {
    const v1::DataSpec& data = spec_.data();
    Vocabulary("model.gpt2.vocab_size", gpt2->vocab_size());
    LongestSequence("model.gpt2.n_positions", gpt2->n_positions(), 1 << 20);
    if (gpt2->n_positions() == 0) {
      gpt2->set_n_positions(data.sequence_length());
    }
    const bool width_sound =
        RequiredInt("model.gpt2.n_embd", gpt2->n_embd(), 1, 1 << 16);
    RequiredInt("model.gpt2.n_layer", gpt2->n_layer(), 1, 1000);
    if (RequiredInt("model.gpt2.n_head", gpt2->n_head(), 1, 1024) &&
        width_sound && gpt2->n_embd() % gpt2->n_head() != 0) {
      faults_.Add("model.gpt2.n_embd",
                  absl::StrCat("a multiple of n_head=", gpt2->n_head()),
                  absl::StrCat(gpt2->n_embd()));
    }
    if (gpt2->n_inner() == 0) {
      if (width_sound) gpt2->set_n_inner(4 * gpt2->n_embd());
    } else {
      Int("model.gpt2.n_inner", gpt2->n_inner(), 1, 1 << 20);
    }
    if (gpt2->layer_norm_epsilon() == 0) gpt2->set_layer_norm_epsilon(1e-5);
    Epsilon("model.gpt2.layer_norm_epsilon", gpt2->layer_norm_epsilon());
    if (gpt2->initializer_range() == 0) gpt2->set_initializer_range(0.02);
    InitializerRange("model.gpt2.initializer_range", gpt2->initializer_range());
    if (!gpt2->has_tie_word_embeddings()) gpt2->set_tie_word_embeddings(true);
  }

  bool SequenceLengthSound() const {
    return spec_.data().sequence_length() >= 1 &&
           spec_.data().sequence_length() <= kSequenceLengthMax;
  }

  void Data() {
    v1::DataSpec& data = *spec_.mutable_data();
    if (data.files().empty() || data.files_size() > 10'000) {
      faults_.Add(
          "data.files", "1 to 10000 paths (required)",
          data.files().empty() ? "nothing" : absl::StrCat(data.files_size()));
    }
    for (int i = 0; i < std::min(data.files_size(), 10'000); ++i) {
      Path(absl::StrCat("data.files[", i, "]"), data.mutable_files(i));
    }
    if (!data.mask_files().empty() &&
        data.mask_files_size() != data.files_size()) {
      faults_.Add("data.mask_files",
                  absl::StrCat("none, or one for each of data.files, ",
                               data.files_size()),
                  absl::StrCat(data.mask_files_size()));
    }
    for (int i = 0; i < std::min(data.mask_files_size(), 10'000); ++i) {
      Path(absl::StrCat("data.mask_files[", i, "]"),
           data.mutable_mask_files(i));
    }
    if (data.format() == v1::DataSpec::FORMAT_UNSPECIFIED ||
        !v1::DataSpec::Format_IsValid(data.format())) {
      faults_.Add(
          "data.format", "BYTES, TOKENS_U16, TOKENS_U32 or LLM_C (required)",
          data.format() == 0 ? "nothing"
                             : absl::StrCat(static_cast<int>(data.format())));
    }
    RequiredInt("data.sequence_length", data.sequence_length(), 1,
                kSequenceLengthMax);
    if (data.stride() == 0) {
      data.set_stride(data.sequence_length());
    } else {
      Int("data.stride", data.stride(), 1, kInt32Max);
    }
    if (data.order() == v1::DataSpec::ORDER_UNSPECIFIED) {
      data.set_order(v1::DataSpec::PERMUTED);
    } else if (!v1::DataSpec::Order_IsValid(data.order())) {
      faults_.Add("data.order", "PERMUTED or SEQUENTIAL",
                  absl::StrCat(static_cast<int>(data.order())));
    }
    Double("data.held_out_fraction", data.held_out_fraction(),
           data.held_out_fraction() >= 0 && data.held_out_fraction() <= 0.5,
           "0 to 0.5");
    if (data.held_out_samples_max() != 0) {
      Int("data.held_out_samples_max", data.held_out_samples_max(), 1,
          kInt32Max);
    }
  }

  void Batch() {
    const v1::BatchSpec& batch = *spec_.mutable_batch();
    const bool global_sound = RequiredInt(
        "batch.global_batch_size", batch.global_batch_size(), 1, 1 << 20);
    const bool micro_sound = RequiredInt("batch.micro_batch_size",
                                         batch.micro_batch_size(), 1, 1 << 16);
    batch_sound_ = global_sound && micro_sound;
    if (batch_sound_ &&
        batch.global_batch_size() % batch.micro_batch_size() != 0) {
      batch_sound_ = false;
      faults_.Add("batch.global_batch_size",
                  absl::StrCat("a multiple of micro_batch_size=",
                               batch.micro_batch_size()),
                  absl::StrCat(batch.global_batch_size()));
    }
  }

  void Schedule() {
    v1::ScheduleSpec& schedule = *spec_.mutable_schedule();
    bool steps_sound = false;
    switch (schedule.length_case()) {
      case v1::ScheduleSpec::kMaxSteps:
        steps_sound =
            Int("schedule.max_steps", schedule.max_steps(), 1, kStepsMax);
        break;
      case v1::ScheduleSpec::kMaxTokens:
        steps_sound = Int("schedule.max_tokens", schedule.max_tokens(), 1,
                          int64_t{1} << 60) &&
                      batch_sound_ && SequenceLengthSound();
        break;
      case v1::ScheduleSpec::kEpochs:
        Double("schedule.epochs", schedule.epochs(),
               schedule.epochs() > 0 && schedule.epochs() <= 1e6,
               "above 0, to 1e6");
        break;
      case v1::ScheduleSpec::LENGTH_NOT_SET:
        faults_.Add("schedule",
                    "one of max_steps, max_tokens, epochs (required)",
                    "nothing");
        break;
    }
    if (Int("schedule.warmup_steps", schedule.warmup_steps(), 0, kStepsMax) &&
        steps_sound) {
      const absl::StatusOr<int64_t> max_steps = MaxSteps(spec_, 0);
      if (!max_steps.ok()) {
        faults_.Add("schedule.max_tokens",
                    absl::StrCat("at most ", kStepsMax, " steps of tokens"),
                    absl::StrCat(schedule.max_tokens()));
      } else if (schedule.warmup_steps() > *max_steps) {
        faults_.Add("schedule.warmup_steps",
                    absl::StrCat("at most the job's steps, ", *max_steps),
                    absl::StrCat(schedule.warmup_steps()));
      }
    }
    if (schedule.decay() == v1::ScheduleSpec::DECAY_UNSPECIFIED) {
      schedule.set_decay(v1::ScheduleSpec::COSINE);
    } else if (!v1::ScheduleSpec::Decay_IsValid(schedule.decay())) {
      faults_.Add("schedule.decay", "CONSTANT, LINEAR or COSINE",
                  absl::StrCat(static_cast<int>(schedule.decay())));
    }
    const double peak = schedule.peak_learning_rate();
    const double least = schedule.min_learning_rate();
    const bool peak_sound =
        Double("schedule.peak_learning_rate", peak, peak > 0 && peak <= 10,
               peak == 0 ? "above 0, to 10 (required)" : "above 0, to 10");
    if (peak_sound) {
      Double("schedule.min_learning_rate", least, least >= 0 && least <= peak,
             absl::StrCat("0 to peak_learning_rate=", DoubleText(peak)));
    } else {
      Double("schedule.min_learning_rate", least, least >= 0, "0 or above");
    }
    if (schedule.evaluate_every_steps() != 0) {
      Int("schedule.evaluate_every_steps", schedule.evaluate_every_steps(), 1,
          kStepsMax);
    }
  }

  void Optimizer() {
    v1::OptimizerSpec& o = *spec_.mutable_optimizer();
    if (!o.has_beta1()) o.set_beta1(0.9);
    if (!o.has_beta2()) o.set_beta2(0.95);
    if (!o.has_epsilon()) o.set_epsilon(1e-8);
    if (!o.has_weight_decay()) o.set_weight_decay(0.1);
    if (!o.has_clip_norm()) o.set_clip_norm(1);
    Double("optimizer.beta1", o.beta1(), o.beta1() >= 0 && o.beta1() < 1,
           "0 to below 1");
    Double("optimizer.beta2", o.beta2(), o.beta2() >= 0 && o.beta2() < 1,
           "0 to below 1");
    Double("optimizer.epsilon", o.epsilon(),
           o.epsilon() > 0 && o.epsilon() <= 1, "above 0, to 1");
    Double("optimizer.weight_decay", o.weight_decay(),
           o.weight_decay() >= 0 && o.weight_decay() <= 10, "0 to 10");
    Double("optimizer.clip_norm", o.clip_norm(), o.clip_norm() >= 0,
           "above 0, or 0 for never");
  }

  void Numerics() {
    v1::NumericsSpec& numerics = *spec_.mutable_numerics();
    Int("numerics.seed", numerics.seed(), 0, int64_t{1} << 53);
    Double("numerics.dropout", numerics.dropout(),
           numerics.dropout() >= 0 && numerics.dropout() < 1, "0 to below 1");
    if (numerics.non_finite() == v1::NumericsSpec::NON_FINITE_UNSPECIFIED) {
      numerics.set_non_finite(v1::NumericsSpec::SKIP);
    } else if (!v1::NumericsSpec::NonFinite_IsValid(numerics.non_finite())) {
      faults_.Add("numerics.non_finite", "SKIP or STOP",
                  absl::StrCat(static_cast<int>(numerics.non_finite())));
    }
    if (numerics.skipped_steps_max() == 0) {
      numerics.set_skipped_steps_max(5);
    } else {
      Int("numerics.skipped_steps_max", numerics.skipped_steps_max(), 1,
          1'000'000);
    }
    if (numerics.precision() == v1::NumericsSpec::PRECISION_UNSPECIFIED) {
      numerics.set_precision(v1::NumericsSpec::FLOAT32);
    } else if (!v1::NumericsSpec::Precision_IsValid(numerics.precision())) {
      faults_.Add("numerics.precision", "FLOAT32 or BFLOAT16",
                  absl::StrCat(static_cast<int>(numerics.precision())));
    }
    if (numerics.reduction() == v1::NumericsSpec::REDUCTION_UNSPECIFIED) {
      numerics.set_reduction(v1::NumericsSpec::EXACT);
    } else if (!v1::NumericsSpec::Reduction_IsValid(numerics.reduction())) {
      faults_.Add("numerics.reduction",
                  "EXACT, REDUCTION_FLOAT32 or REDUCTION_BFLOAT16",
                  absl::StrCat(static_cast<int>(numerics.reduction())));
    }
  }

  void Parallel() {
    v1::ParallelSpec& parallel = *spec_.mutable_parallel();
    if (parallel.min_workers() == 0) parallel.set_min_workers(1);
    if (Int("parallel.min_workers", parallel.min_workers(), 1, 4096)) {
      if (batch_sound_ && parallel.min_workers() > MicroBatchesPerStep(spec_)) {
        faults_.Add("parallel.min_workers",
                    absl::StrCat("at most the micro-batches of a step, ",
                                 MicroBatchesPerStep(spec_)),
                    absl::StrCat(parallel.min_workers()));
      }
      if (parallel.max_workers() == 0) {
        parallel.set_max_workers(parallel.min_workers());
      }
      if (Int("parallel.max_workers", parallel.max_workers(), 1, 4096) &&
          parallel.max_workers() < parallel.min_workers()) {
        faults_.Add(
            "parallel.max_workers",
            absl::StrCat("at least min_workers=", parallel.min_workers()),
            absl::StrCat(parallel.max_workers()));
      }
    } else if (parallel.max_workers() != 0) {
      Int("parallel.max_workers", parallel.max_workers(), 1, 4096);
    }
    if (parallel.has_zero_stage()) {
      Int("parallel.zero_stage", parallel.zero_stage(), 0, 3);
    }
    if (parallel.bucket_bytes() == 0) parallel.set_bucket_bytes(26'214'400);
    Int("parallel.bucket_bytes", parallel.bucket_bytes(), 1024, kInt32Max);
    if (!parallel.has_overlap()) parallel.set_overlap(true);
    if (parallel.recompute() == v1::ParallelSpec::RECOMPUTE_UNSPECIFIED) {
      parallel.set_recompute(v1::ParallelSpec::NONE);
    } else if (!v1::ParallelSpec::Recompute_IsValid(parallel.recompute())) {
      faults_.Add("parallel.recompute", "NONE or BLOCK",
                  absl::StrCat(static_cast<int>(parallel.recompute())));
    }
    if (!parallel.has_failures_max()) parallel.set_failures_max(5);
    Int("parallel.failures_max", parallel.failures_max(), 0, 1000);
  }

  void Checkpoint() {
    v1::CheckpointSpec& checkpoint = *spec_.mutable_checkpoint();
    if (!checkpoint.has_every_minutes()) {
      checkpoint.set_every_minutes(checkpoint.every_steps() == 0 ? 10 : 0);
    }
    const double minutes = checkpoint.every_minutes();
    Double("checkpoint.every_minutes", minutes, minutes >= 0 && minutes <= 1e6,
           "above 0, to 1e6, or 0 for not by time");
    if (checkpoint.every_steps() != 0) {
      Int("checkpoint.every_steps", checkpoint.every_steps(), 1, kStepsMax);
    }
    if (checkpoint.keep() == 0) checkpoint.set_keep(2);
    Int("checkpoint.keep", checkpoint.keep(), 1, 1'000'000);
  }

  v1::JobSpec spec_;
  Faults faults_;
  bool batch_sound_ = false;
};

}  // namespace

absl::StatusOr<v1::JobSpec> ResolveJobSpec(const v1::JobSpec& spec) {
  return Resolver(spec).Run();
}

int64_t MicroBatchesPerStep(const v1::JobSpec& spec) {
  return spec.batch().global_batch_size() / spec.batch().micro_batch_size();
}

int64_t TokensPerStep(const v1::JobSpec& spec) {
  return int64_t{spec.batch().global_batch_size()} *
         spec.data().sequence_length();
}

bool SavesCheckpoints(const v1::JobSpec& spec) {
  return spec.checkpoint().every_steps() > 0 ||
         spec.checkpoint().every_minutes() > 0;
}

bool KnowsMaxSteps(const v1::JobSpec& spec) {
  return spec.schedule().length_case() != v1::ScheduleSpec::kEpochs;
}

absl::StatusOr<int64_t> MaxSteps(const v1::JobSpec& spec,
                                 int64_t training_sample_count) {
  const v1::ScheduleSpec& schedule = spec.schedule();
  TrainingLength length;
  switch (schedule.length_case()) {
    case v1::ScheduleSpec::kMaxTokens:
      length = TrainTokens{schedule.max_tokens()};
      break;
    case v1::ScheduleSpec::kEpochs:
      length = TrainEpochs{schedule.epochs()};
      break;
    default:
      return schedule.max_steps();
  }
  return ResolveStepCount(
      length,
      {.global_batch_size = spec.batch().global_batch_size(),
       .sequence_length = spec.data().sequence_length()},
      KnowsMaxSteps(spec) ? 1 : training_sample_count);
}

DecoderShape DecoderShapeOf(const v1::JobSpec& spec, int thread_count) {
  return {.rows = spec.batch().micro_batch_size(),
          .sequence_length = spec.data().sequence_length(),
          .bfloat16 = spec.numerics().precision() == v1::NumericsSpec::BFLOAT16,
          .recomputes_blocks =
              spec.parallel().recompute() == v1::ParallelSpec::BLOCK,
          .drops = spec.numerics().dropout() > 0,
          .thread_count = thread_count};
}

ModelConfig ToModelConfig(const v1::Gpt2Config& config) {
  ModelConfig model = {
      .family = ModelFamily::kGpt2,
      .vocabulary = config.vocab_size(),
      .position_max = config.n_positions(),
      .width = config.n_embd(),
      .layer_count = config.n_layer(),
      .inner_width = config.n_inner(),
      .norm_epsilon = config.layer_norm_epsilon(),
      .initializer_range = config.initializer_range(),
      .tied_head = config.tie_word_embeddings(),
  };
  model.SetPlainHeads(config.n_head());
  return model;
}

ModelConfig ToModelConfig(const v1::LlamaConfig& config) {
  return {
      .family = ModelFamily::kLlama,
      .vocabulary = config.vocab_size(),
      .position_max = config.max_position_embeddings(),
      .width = config.hidden_size(),
      .layer_count = config.num_hidden_layers(),
      .head_count = config.num_attention_heads(),
      .key_value_head_count = config.num_key_value_heads(),
      .head_width = config.head_dim(),
      .inner_width = config.intermediate_size(),
      .norm_epsilon = config.rms_norm_eps(),
      .initializer_range = config.initializer_range(),
      .tied_head = config.tie_word_embeddings(),
      .rotary_base = config.rope_theta(),
  };
}

ModelConfig ToModelConfig(const v1::ModelSizes& sizes) {
  ModelConfig model = {
      .vocabulary = sizes.vocab_size(),
      .position_max = sizes.max_position_embeddings(),
      .width = sizes.hidden_size(),
      .layer_count = sizes.num_hidden_layers(),
      .head_count = sizes.num_attention_heads(),
      .key_value_head_count = sizes.num_key_value_heads(),
      .head_width = sizes.head_dim(),
      .inner_width = sizes.intermediate_size(),
      .tied_head = sizes.tie_word_embeddings(),
      .qkv_bias = sizes.attention_bias(),
      .attention_out_bias = sizes.attention_bias(),
      .inner_bias = sizes.mlp_bias(),
  };
  for (const ModelFamily family : kModelFamilies) {
    if (sizes.model_type() == FamilyName(family)) model.family = family;
  }
  if (model.family == ModelFamily::kQwen2) {
    model.qkv_bias = true;
    model.attention_out_bias = false;
  }
  return model;
}

v1::ModelSizes ToModelSizes(const ModelConfig& config) {
  v1::ModelSizes sizes;
  sizes.set_model_type(std::string(FamilyName(config.family)));
  sizes.set_vocab_size(config.vocabulary);
  sizes.set_max_position_embeddings(config.position_max);
  sizes.set_hidden_size(config.width);
  sizes.set_num_hidden_layers(config.layer_count);
  sizes.set_num_attention_heads(config.head_count);
  sizes.set_num_key_value_heads(config.key_value_head_count);
  sizes.set_head_dim(config.head_width);
  sizes.set_intermediate_size(config.inner_width);
  sizes.set_tie_word_embeddings(config.tied_head);
  sizes.set_attention_bias(config.attention_out_bias);
  sizes.set_mlp_bias(config.inner_bias);
  return sizes;
}

v1::JobSpec WhatDecidesBits(const v1::JobSpec& spec) {
  v1::JobSpec bits = spec;
  bits.clear_display_name();
  bits.clear_priority();
  bits.clear_output_directory();
  bits.clear_checkpoint();
  bits.clear_parallel();
  bits.mutable_model()->clear_sizes();
  return bits;
}

}  // namespace lockstep
