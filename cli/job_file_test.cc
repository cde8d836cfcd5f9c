#include "cli/job_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/spec_yaml.h"
#include "common/spec.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<JobFile> Parse(const std::string& text) {
  return JobFile::Parse(text, "job.yaml", "/jobs/mine");
}

std::string FaultOf(const std::string& text) {
  const auto file = Parse(text);
  if (file.ok()) return "none";
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(file.status().message());
}

std::string SpecOf(const std::string& text) {
  const auto file = Parse(text);
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? file->spec().ShortDebugString() : "";
}

constexpr char kWhole[] = R"(# A comment.
display_name: King James
priority: -3
model:
  gpt2: {vocab_size: 256, n_embd: 64, n_layer: 2, n_head: 4}
data:
  files:
    - kjv.txt
    - ../more/./b.txt
    - /abs/c.txt
  format: BYTES
  sequence_length: 64
batch: &b
  global_batch_size: 16
  micro_batch_size: 2
schedule:
  max_tokens: 1e6
  peak_learning_rate: 2e-3
optimizer:
numerics:
  seed: "9007199254740992"
parallel:
  overlap: false
output_directory: out
)";

TEST(JobFileTest, ReadsAWholeJob) {
  v1::JobSpec expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    display_name: "King James"
    priority: -3
    model { gpt2 { vocab_size: 256 n_embd: 64 n_layer: 2 n_head: 4 } }
    data { files: "/jobs/mine/kjv.txt" files: "/jobs/more/b.txt"
           files: "/abs/c.txt" format: BYTES sequence_length: 64 }
    batch { global_batch_size: 16 micro_batch_size: 2 }
    schedule { max_tokens: 1000000 peak_learning_rate: 2e-3 }
    optimizer {}
    numerics { seed: 9007199254740992 }
    parallel { overlap: false }
    output_directory: "/jobs/mine/out"
  )",
                                                            &expected));

  EXPECT_EQ(SpecOf(kWhole), expected.ShortDebugString());
}

TEST(JobFileTest, ReadsWhatProtocolBuffersWriteAsJson) {
  const auto yaml = Parse(kWhole);
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  for (const bool proto_names : {true, false}) {
    for (const char* indent : {" ", "\t"}) {
      google::protobuf::util::JsonPrintOptions options;
      options.preserve_proto_field_names = proto_names;
      options.add_whitespace = true;
      std::string json;
      ASSERT_TRUE(google::protobuf::util::MessageToJsonString(yaml->spec(),
                                                              &json, options)
                      .ok());
      for (size_t at = 0; (at = json.find("\n ", at)) != std::string::npos;) {
        json.replace(at + 1, 1, indent);
        ++at;
      }
      EXPECT_EQ(SpecOf(json), yaml->spec().ShortDebugString()) << json;
    }
  }
}

TEST(JobFileTest, AnchorsStandForWhatTheyName) {
  EXPECT_EQ(SpecOf("batch: {global_batch_size: &n 8, micro_batch_size: *n}"),
            "batch { global_batch_size: 8 micro_batch_size: 8 }");
  // One that contains itself ends at the depth of the spec.
  EXPECT_THAT(FaultOf("model: &m {gpt2: *m}"),
              HasSubstr("model.gpt2.gpt2: no such field"));
}

TEST(JobFileTest, EveryFaultHasItsPlaceAndSaysWhatIsExpected) {
  struct {
    const char* text;
    const char* fault;
  } const kCases[] = {
      // Names.
      {"batch:\n  global_batch_sise: 8\n",
       "job.yaml:2:3: batch.global_batch_sise: no such field; did you mean "
       "global_batch_size?"},
      {"batch:\n  batch_size: 8\n",
       "job.yaml:2:3: batch.batch_size: no such field; did you mean "
       "global_batch_size or micro_batch_size?"},
      {"global_batch_size: 8\n",
       "job.yaml:1:1: global_batch_size: no such field here; did you mean "
       "global_batch_size under batch:?"},
      {"batch: {learning_rate: 1}",
       "job.yaml:1:9: batch.learning_rate: no such field; batch has "
       "global_batch_size, micro_batch_size"},
      {"batch: {n_embed: 1}",
       "job.yaml:1:9: batch.n_embed: no such field here; did you mean n_embd "
       "under model.gpt2:?"},
      {"schedule:\n  output_directory: /x\n",
       "job.yaml:2:3: schedule.output_directory: no such field here; did you "
       "mean output_directory at the top of the file?"},
      {"batch: {\"a\\nb\": 1}",
       "job.yaml:1:9: batch.\"a\\nb\": no such field; batch has "
       "global_batch_size, micro_batch_size"},
      {"<<: 1\n",
       "job.yaml:1:1: <<: no such field; a job has display_name, priority, "
       "model, data, batch, schedule, optimizer, numerics, parallel, "
       "output_directory, checkpoint"},
      {"? [a]\n: 1\n",
       "job.yaml:1:3: expected the name of a field before the colon, got a "
       "list"},
      // Once only.
      {"priority: 1\ndata: {}\npriority: 2\n",
       "job.yaml:3:1: priority: is already on line 1"},
      {"displayName: a\ndisplay_name: b\n",
       "job.yaml:2:1: display_name: is already on line 1"},
      {"schedule:\n  max_steps: 3\n  epochs: 1\n",
       "job.yaml:3:3: schedule.epochs: cannot be together with max_steps on "
       "line 2: keep one"},
      {"model:\n  gpt2:\n  hugging_face_folder: /m\n",
       "job.yaml:3:3: model.hugging_face_folder: cannot be together with gpt2 "
       "on line 2: keep one"},
      // Whole numbers.
      {"priority: high\n",
       "job.yaml:1:11: priority: expected a whole number, got \"high\""},
      {"priority: 1.5\n",
       "job.yaml:1:11: priority: expected a whole number, got \"1.5\""},
      {"priority: \"1\"\n",
       "job.yaml:1:11: priority: expected a whole number, got text \"1\": "
       "write it without quotes"},
      {"priority: 2147483648\n",
       "job.yaml:1:11: priority: expected a whole number, -2147483648 to "
       "2147483647, got \"2147483648\""},
      {"priority: 1_000\n",
       "job.yaml:1:11: priority: expected a whole number, got \"1_000\": "
       "write 1000"},
      {"priority: [1]\n",
       "job.yaml:1:11: priority: expected a whole number, got a list"},
      {"priority: {a: 1}\n",
       "job.yaml:1:11: priority: expected a whole number, got a section of "
       "fields"},
      {"priority:\n",
       "job.yaml:1:1: priority: expected a whole number, got nothing"},
      {"priority: null\n",
       "job.yaml:1:1: priority: expected a whole number, got nothing"},
      {"schedule: {max_steps: 1e-3}",
       "job.yaml:1:23: schedule.max_steps: expected a whole number, got "
       "\"1e-3\""},
      {"schedule: {max_steps: ten}",
       "job.yaml:1:23: schedule.max_steps: expected a whole number, got "
       "\"ten\""},
      // Numbers.
      {"optimizer: {beta1: .nan}",
       "job.yaml:1:20: optimizer.beta1: expected a number, got \".nan\""},
      {"optimizer: {beta1: \"0.9\"}",
       "job.yaml:1:20: optimizer.beta1: expected a number, got text \"0.9\": "
       "write it without quotes"},
      {"optimizer: {beta1: true}",
       "job.yaml:1:20: optimizer.beta1: expected a number, got \"true\""},
      {"optimizer: {beta1: [0.9, 0.95]}",
       "job.yaml:1:20: optimizer.beta1: expected a number, got a list"},
      // Yes or no.
      {"parallel: {overlap: yes}",
       "job.yaml:1:21: parallel.overlap: expected true or false, got \"yes\""},
      {"parallel: {overlap: 1}",
       "job.yaml:1:21: parallel.overlap: expected true or false, got \"1\""},
      {"parallel: {overlap: \"true\"}",
       "job.yaml:1:21: parallel.overlap: expected true or false, got text "
       "\"true\""},
      // Values by name.
      {"data: {format: bytes}",
       "job.yaml:1:16: data.format: expected BYTES, TOKENS_U16, TOKENS_U32 or "
       "LLM_C, "
       "got \"bytes\": did you mean BYTES?"},
      {"data: {format: TEXT}",
       "job.yaml:1:16: data.format: expected BYTES, TOKENS_U16, TOKENS_U32 or "
       "LLM_C, "
       "got \"TEXT\""},
      {"data: {format: 1}",
       "job.yaml:1:16: data.format: expected BYTES, TOKENS_U16, TOKENS_U32 or "
       "LLM_C, "
       "got \"1\""},
      {"schedule: {decay: [COSINE]}",
       "job.yaml:1:19: schedule.decay: expected CONSTANT, LINEAR or COSINE, "
       "got a list"},
      // Text.
      {"display_name: 2024\n",
       "job.yaml:1:15: display_name: expected text, got \"2024\": put it in "
       "quotes"},
      {"display_name: true\n",
       "job.yaml:1:15: display_name: expected text, got \"true\": put it in "
       "quotes"},
      {"display_name: {a: b}\n",
       "job.yaml:1:15: display_name: expected text, got a section of fields"},
      {"output_directory: ~/out\n",
       "job.yaml:1:19: output_directory: expected a path written in full "
       "(\"~\" is not replaced here; \"./~\" means a folder of that name), "
       "got \"~/out\""},
      // Tags.
      {"display_name: !env NAME\n",
       "job.yaml:1:1: display_name: expected a value without a tag, got the "
       "tag \"!env\": leave it out"},
      {"data:\n  files:\n    - a\n    - !glob b\n",
       "job.yaml:4:7: data.files[1]: expected a value without a tag, got the "
       "tag \"!glob\": leave it out"},
      {"data: !include data.yaml\n",
       "job.yaml:1:1: data: expected a value without a tag, got the tag "
       "\"!include\": leave it out"},
      // Lists and sections.
      {"data: {files: a.txt}",
       "job.yaml:1:15: data.files: expected a list, got \"a.txt\": write "
       "[a.txt]"},
      {"data: {files: {a: 1}}",
       "job.yaml:1:15: data.files: expected a list, got a section of fields"},
      {"data:\n  files:\n    - a\n    - [b]\n",
       "job.yaml:4:7: data.files[1]: expected text, got a list"},
      {"data:\n  files: [a, 7]\n",
       "job.yaml:2:14: data.files[1]: expected text, got \"7\": put it in "
       "quotes"},
      {"data: [a]\n",
       "job.yaml:1:7: data: expected a section with fields such as files:, "
       "got a list"},
      {"data: a\n",
       "job.yaml:1:7: data: expected a section with fields such as files:, "
       "got \"a\""},
      // The file.
      {"",
       "job.yaml: expected a job (model, data, batch, schedule, "
       "output_directory), got an empty file"},
      {"# nothing\n",
       "job.yaml: expected a job (model, data, batch, schedule, "
       "output_directory), got an empty file"},
      {"In the beginning\nGod created",
       "job.yaml:1:1: expected a section with fields such as display_name:, "
       "got \"In the beginning God created\""},
      {"- a\n",
       "job.yaml:1:1: expected a section with fields such as display_name:, "
       "got a list"},
      {"priority: 1\n---\npriority: 2\n",
       "job.yaml:3:1: expected the end of the file: a job file holds one job"},
      {"batch:\n\tglobal_batch_size: 1\n",
       "job.yaml:2:1: expected indentation by spaces, got a tab"},
      {"batch:\n  \tglobal_batch_size: 1\n",
       "job.yaml:2:3: expected indentation by spaces, got a tab"},
      {"priority: 1\ndisplay_name: caf\xE9\n",
       "job.yaml: expected a job file, which is text in UTF-8, got byte 233 at "
       "offset 29"},
  };
  for (const auto& c : kCases) EXPECT_EQ(FaultOf(c.text), c.fault) << c.text;
}

TEST(JobFileTest, WhatIsNoYamlIsSaidWithItsPlace) {
  EXPECT_THAT(FaultOf("data: [a, b\n"), StartsWith("job.yaml:2:1: not YAML: "));
  EXPECT_THAT(FaultOf("a: b: c\n"), StartsWith("job.yaml:1:5: not YAML: "));
  EXPECT_THAT(FaultOf("a: *b\n"), StartsWith("job.yaml:1:4: not YAML: "));
  EXPECT_THAT(FaultOf(std::string(100'000, '[')), HasSubstr("not YAML: "));
  EXPECT_THAT(FaultOf(std::string("a\0b", 3)), HasSubstr("byte 0 at offset 1"));
  EXPECT_THAT(FaultOf(std::string(JobFile::kBytesMax + 1, ' ')),
              HasSubstr("expected a job file of at most 1048576 bytes"));
}

TEST(JobFileTest, AllFaultsAreSaidAtOnceUpToABound) {
  EXPECT_EQ(FaultOf("priority: x\nbatch:\n  seed: 1\nnumerics: {seed: a}\n"),
            "job.yaml:1:11: priority: expected a whole number, got \"x\"\n"
            "job.yaml:3:3: batch.seed: no such field here; did you mean seed "
            "under numerics:?\n"
            "job.yaml:4:18: numerics.seed: expected a whole number, got \"a\"");

  std::string many;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&many, "x", i, ": 1\n");
  const std::string faults = FaultOf(many);
  EXPECT_EQ(std::count(faults.begin(), faults.end(), '\n'), 50);
  EXPECT_THAT(faults, ::testing::EndsWith("\nand more"));
}

TEST(JobFileTest, SetReplacesOneField) {
  auto file = Parse(kWhole);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const char* assignment :
       {"batch.global_batch_size=32", "schedule.max_steps=1e3",
        "display_name=2 x: y", "data.files=[a.txt, /b.txt]",
        "model.hugging_face_folder=m", "optimizer={beta1: 0.5}",
        "parallel.overlap=true", "schedule.decay= LINEAR"}) {
    const absl::Status status = file->Set(assignment, "/here");
    EXPECT_TRUE(status.ok()) << status;
  }

  v1::JobSpec expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    display_name: "2 x: y"
    priority: -3
    model { hugging_face_folder: "/here/m" }
    data { files: "/here/a.txt" files: "/b.txt" format: BYTES
           sequence_length: 64 }
    batch { global_batch_size: 32 micro_batch_size: 2 }
    schedule { max_steps: 1000 decay: LINEAR peak_learning_rate: 2e-3 }
    optimizer { beta1: 0.5 }
    numerics { seed: 9007199254740992 }
    parallel { overlap: true }
    output_directory: "/jobs/mine/out"
  )",
                                                            &expected));
  EXPECT_EQ(file->spec().ShortDebugString(), expected.ShortDebugString());
}

TEST(JobFileTest, AFaultySetSaysSoAndSetsNothing) {
  auto file = Parse(kWhole);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string before = file->spec().ShortDebugString();
  struct {
    const char* assignment;
    const char* fault;
  } const kCases[] = {
      {"priority",
       "--set priority: expected path.to.field=value, such as "
       "batch.global_batch_size=32"},
      {"=1",
       "--set =1: expected path.to.field=value, such as "
       "batch.global_batch_size=32"},
      {"batch.global=1",
       "--set batch.global=1: batch.global: no such field; did you mean "
       "global_batch_size?"},
      {"priority.x=1", "--set priority.x=1: priority has no fields of its own"},
      {"data.files.x=1",
       "--set data.files.x=1: data.files has no fields of its own"},
      {"priority=a",
       "--set priority=a: priority: expected a whole number, got \"a\""},
      {"priority=",
       "--set priority=: priority: expected a whole number, got "
       "nothing"},
      {"data.files=a",
       "--set data.files=a: data.files: expected a list, got \"a\": write "
       "[a]"},
      {"output_directory=~",
       "--set output_directory=~: output_directory: expected a path written "
       "in full (\"~\" is not replaced here; \"./~\" means a folder of that "
       "name), got \"~\""},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(file->Set(c.assignment, "/here").message(), c.fault);
  }
  EXPECT_EQ(file->spec().ShortDebugString(), before);
}

TEST(JobFileTest, FaultsOfTheSpecGetTheirPlaces) {
  auto file = Parse(
      "batch:\n  global_batch_size: 7\n  micro_batch_size: 2\n"
      "data:\n  files: [/a, '/../b']\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Set("numerics.dropout=2", "/").ok());

  const absl::Status located =
      file->Locate(ResolveJobSpec(file->spec()).status());

  EXPECT_EQ(located.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(located.message());
  for (const char* line :
       {"job.yaml: model: expected one of",
        "job.yaml:4:1: data.format: expected ",
        "job.yaml:5:15: data.files[1]: expected ",
        "job.yaml:2:3: batch.global_batch_size: expected a multiple",
        "job.yaml: schedule.peak_learning_rate: expected ",
        "--set numerics.dropout=2: numerics.dropout: expected "}) {
    EXPECT_THAT("\n" + message, HasSubstr(absl::StrCat("\n", line)));
  }
  EXPECT_EQ(file->Locate(absl::InternalError("Disk: full\nno path")).message(),
            "Disk: full\nno path");
  EXPECT_TRUE(file->Locate(absl::OkStatus()).ok());
}

// Fills a message with random values, every kind of field alike.
class RandomSpec {
 public:
  explicit RandomSpec(uint32_t seed) : random_(seed) {}

  void Fill(google::protobuf::Message* message) {
    using Field = google::protobuf::FieldDescriptor;
    const auto* type = message->GetDescriptor();
    const auto* r = message->GetReflection();
    for (int i = 0; i < type->field_count(); ++i) {
      const Field* field = type->field(i);
      if (random_() % 3 == 0) continue;
      if (field->is_repeated()) {
        for (uint32_t n = random_() % 4; n > 0; --n) {
          r->AddString(message, field, Text(true));
        }
        continue;
      }
      switch (field->cpp_type()) {
        case Field::CPPTYPE_MESSAGE:
          Fill(r->MutableMessage(message, field));
          break;
        case Field::CPPTYPE_INT32:
          r->SetInt32(message, field, static_cast<int32_t>(random_()));
          break;
        case Field::CPPTYPE_INT64:
          r->SetInt64(message, field, static_cast<int64_t>(Bits()));
          break;
        case Field::CPPTYPE_DOUBLE: {
          double value;
          do {
            const uint64_t bits = Bits();
            memcpy(&value, &bits, sizeof value);
          } while (!std::isfinite(value));
          r->SetDouble(message, field, value);
          break;
        }
        case Field::CPPTYPE_BOOL:
          r->SetBool(message, field, random_() % 2 == 0);
          break;
        case Field::CPPTYPE_ENUM: {
          const int n = field->enum_type()->value_count();
          r->SetEnum(message, field,
                     field->enum_type()->value(
                         static_cast<int>(random_() % uint32_t(n))));
          break;
        }
        case Field::CPPTYPE_STRING:
          r->SetString(message, field, Text(field->name() != "display_name"));
          break;
        default:
          FAIL() << field->full_name();
      }
    }
  }

 private:
  uint64_t Bits() { return uint64_t{random_()} << 32 | random_(); }

  std::string Text(bool path) {
    static const char* const kPieces[] = {"a",
                                          " ",
                                          "\"",
                                          "\\",
                                          "\n",
                                          "\t",
                                          ": ",
                                          " #",
                                          "'",
                                          "{",
                                          "]",
                                          "true",
                                          "12",
                                          "~",
                                          "\x01",
                                          "\x7F",
                                          "\xC3\xA9",
                                          "\xE2\x80\xA8",
                                          "-",
                                          "\xC2\x85",
                                          "%",
                                          "\r",
                                          "&",
                                          "*",
                                          "\xEF\xBB\xBF",
                                          "\\n",
                                          "\xF0\x9F\x98\x80"};
    std::string text = path ? "/" : "";
    for (uint32_t n = random_() % 8; n > 0; --n) {
      text += kPieces[random_() % std::size(kPieces)];
    }
    return text;
  }

  std::mt19937 random_;
};

TEST(JobFileTest, EverySpecPrintsAsAFileThatReadsAsTheSame) {
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    v1::JobSpec spec;
    RandomSpec(seed).Fill(&spec);
    const std::string yaml = SpecToYaml(spec);

    const auto file = Parse(yaml);

    ASSERT_TRUE(file.ok()) << "seed " << seed << ": " << file.status() << "\n"
                           << yaml;
    ASSERT_EQ(file->spec().SerializeAsString(), spec.SerializeAsString())
        << "seed " << seed << "\n"
        << yaml;
  }
  EXPECT_EQ(SpecOf(SpecToYaml(v1::JobSpec())), "");
}

TEST(JobFileTest, TheExampleOfTheDocumentationIsSound) {
  const auto file = JobFile::Read("docs/example-job.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto resolved = ResolveJobSpec(file->spec());
  EXPECT_TRUE(resolved.ok()) << resolved.status();
}

TEST(JobFileTest, ReadTakesPathsRelativeToTheFile) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "job_file_test";
  fs::create_directories(folder / "sub");
  std::ofstream(folder / "sub" / "job.yaml") << kWhole;

  const auto file = JobFile::Read((folder / "sub/./../sub/job.yaml").string());

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->spec().data().files(0), (folder / "sub/kjv.txt").string());
  EXPECT_EQ(file->spec().data().files(1), (folder / "more/b.txt").string());
  EXPECT_EQ(file->spec().output_directory(), (folder / "sub/out").string());

  EXPECT_THAT(
      std::string(JobFile::Read((folder / "none").string()).status().message()),
      HasSubstr("No such file or directory"));
  EXPECT_THAT(std::string(JobFile::Read(folder.string()).status().message()),
              HasSubstr("it is a folder"));
  std::ofstream(folder / "large") << std::string(2 << 20, '#');
  EXPECT_THAT(
      std::string(
          JobFile::Read((folder / "large").string()).status().message()),
      HasSubstr("expected a job file of at most"));
}

}  // namespace
}  // namespace lockstep::cli
