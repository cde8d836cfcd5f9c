#include "cli/model_commands.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/exit_code.h"
#include "worker/checkpoint/hugging_face.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/model/sampler.h"

namespace lockstep::cli {
namespace {

constexpr char kHashHelp[] = R"(
The hash covers the tensors' names, shapes, types and values, and not how they
are split into files: equal hashes mean equal bits.  Of a checkpoint it covers
the optimizer's state too, and not which workers wrote it.  It is of what is
there: lockstep verify compares that with what was written.

Examples:
  lockstep hash out/model
  lockstep hash model.safetensors
  lockstep hash out/checkpoints/step-000000001000)";

constexpr char kSampleHelp[] = R"(
A model with a vocabulary of at most 256 is taken to be trained on bytes: the
prompt and what comes out are text.  Any other model reads and writes numbers of
tokens: --prompt-tokens 15496,995

The same seed and prompt give the same text.

Examples:
  lockstep sample out/model --prompt "In the beginning"
  lockstep sample out/model --length 500 --temperature 0.8 --seed 3)";

struct SampleOptions {
  std::string folder;
  std::string prompt = "\n";
  std::string prompt_tokens;
  int threads = 0;
  SamplerOptions sampler;
};

int Hash(Environment& env, const std::string& path) {
  const absl::StatusOr<std::string> hash = HashState(Absolute(env, path));
  if (!hash.ok()) return FailOnFile(env, hash.status());
  env.out << *hash << "  " << path << "\n";
  return kExitOk;
}

absl::StatusOr<std::vector<int32_t>> PromptOf(const SampleOptions& options,
                                              bool bytes) {
  std::vector<int32_t> tokens;
  if (options.prompt_tokens.empty()) {
    if (!bytes) {
      return absl::InvalidArgumentError(
          "this model's tokens are not bytes: give the prompt as numbers, "
          "--prompt-tokens 1,2,3");
    }
    for (const char c : options.prompt) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    return tokens;
  }
  for (const absl::string_view part :
       absl::StrSplit(options.prompt_tokens, ',')) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(part), &token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-tokens: expected numbers with commas between, "
                       "got \"",
                       std::string(part), "\""));
    }
    tokens.push_back(token);
  }
  return tokens;
}

int Sample(Environment& env, const SampleOptions& options) {
  const std::string folder = Absolute(env, options.folder);
  const absl::StatusOr<HuggingFaceModel> model = HuggingFaceModel::Open(folder);
  if (!model.ok()) return FailOnFile(env, model.status());
  const bool bytes = model->config().vocabulary <= 256;
  const absl::StatusOr<std::vector<int32_t>> prompt = PromptOf(options, bytes);
  if (!prompt.ok()) return Fail(env, prompt.status());

  const int threads =
      options.threads > 0
          ? options.threads
          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  bool first = true;
  auto put = [&](int32_t token) {
    // The text reads on from its prompt.
    if (first && bytes && options.prompt != "\n") env.out << options.prompt;
    if (bytes) {
      env.out << static_cast<char>(token);
    } else {
      env.out << (first ? "" : " ") << token;
    }
    first = false;
    env.out << std::flush;
  };
  const absl::Status status =
      SampleFromFolder(folder, *prompt, options.sampler, threads, put);
  if (!first) env.out << "\n";
  return status.ok() ? kExitOk : Fail(env, status);
}

}  // namespace

void AddModelCommands(CLI::App* app, CommandLine* line) {
  CLI::App* hash = app->add_subcommand(
      "hash",
      "One SHA-256 of a saved model or checkpoint, however it is split");
  auto path = std::make_shared<std::string>();
  hash->add_option("PATH", *path,
                   "A folder, a checkpoint, or a .safetensors file")
      ->required();
  hash->footer(kHashHelp);
  hash->callback([line, path] {
    line->run = [line, path] { return Hash(line->env, *path); };
  });

  CLI::App* sample = app->add_subcommand("sample", "Text from a trained model");
  auto options = std::make_shared<SampleOptions>();
  sample
      ->add_option("FOLDER", options->folder,
                   "A Hugging Face folder, such as a job's model/")
      ->required();
  CLI::Option* prompt =
      sample->add_option("--prompt", options->prompt,
                         "Text to go on from (default: a line break)");
  sample
      ->add_option("--prompt-tokens", options->prompt_tokens,
                   "The prompt as numbers, with commas between")
      ->excludes(prompt);
  sample->add_option("--length", options->sampler.token_count,
                     "Tokens to make (default 200)");
  sample->add_option("--temperature", options->sampler.temperature,
                     "Above 1 wilder, below 1 tamer, 0 always the likeliest "
                     "(default 1)");
  sample->add_option(
      "--top-k", options->sampler.top_k,
      "Consider only so many of the likeliest tokens (default 0: "
      "all)");
  sample->add_option("--seed", options->sampler.seed, "(default 0)");
  sample
      ->add_option("--threads", options->threads,
                   "Threads to compute with (default: all cores)")
      ->check(CLI::Range(1, 1024).description(""));
  sample->footer(kSampleHelp);
  sample->callback([line, options] {
    line->run = [line, options] { return Sample(line->env, *options); };
  });
}

}  // namespace lockstep::cli
