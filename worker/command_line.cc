#include "worker/command_line.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/duration_flag.h"
#include "common/host_port.h"
#include "common/ids.h"
#include "common/number_flag.h"
#include "common/printable.h"
#include "common/version.h"

namespace lockstep {
namespace {

constexpr int kExitUsage = 2;
constexpr char kTimes[] = "Times";

constexpr double kGibMax = 1e9;

void AddDuration(CLI::App* app, const std::string& name, absl::Duration* value,
                 const std::string& description) {
  app->add_option_function<std::string>(
         name,
         [value, name](const std::string& text) {
           const auto duration = ParseDurationFlag(text);
           if (!duration.ok()) {
             throw CLI::ValidationError(
                 name, std::string(duration.status().message()));
           }
           *value = *duration;
         },
         absl::StrCat(description, "  Default: ", absl::FormatDuration(*value)))
      ->type_name("DURATION")
      ->group(kTimes);
}

const std::map<std::string, Collectives> kCollectives = {
    {"auto", Collectives::kAuto},
    {"tcp", Collectives::kTcp},
    {"shared-memory", Collectives::kSharedMemory}};

CLI::Option* AddCollectives(CLI::App* app, Collectives* value) {
  return app
      ->add_option_function<std::string>(
          "--collectives",
          [value](const std::string& name) { *value = kCollectives.at(name); },
          "By which way the ranks of a job that share a host's memory "
          "exchange gradients: auto\n(shared memory if all ranks share "
          "it, else TCP), tcp, or shared-memory (refuse a job\nwhose "
          "ranks do not).  Changes no bit of the result.  Default: "
          "auto")
      ->type_name("WAY")
      ->check(CLI::IsMember(&kCollectives).description(""));
}

std::string NameOf(Collectives collectives) {
  for (const auto& [name, value] : kCollectives) {
    if (value == collectives) return name;
  }
  return "";
}

// Why `host` must not be used without TLS; empty if it may.
std::string NeedsInsecure(absl::string_view option, const std::string& host) {
  if (IsLoopback(host)) return "";
  return absl::StrCat(
      option, ": ", host,
      " is not this machine's loopback interface, and there is no encryption "
      "yet: whoever can reach the network can read and change what is said.  "
      "On a network that you trust, add --insecure");
}

// What is wrong with the flags; empty if nothing is.
std::string Check(const WorkerFlags& flags) {
  const auto coordinator = ParseHostPort(flags.coordinator);
  if (!coordinator.ok()) {
    return absl::StrCat("--coordinator: ", coordinator.status().message());
  }
  if (coordinator->port == 0) {
    return "--coordinator: port 0 is no port to connect to";
  }
  if (!IsResourceId(flags.name)) {
    return absl::StrCat(
        "--name: expected 1 to 63 letters a to z, digits, "
        "hyphens and dots, beginning with a letter or digit, "
        "got ",
        Quoted(flags.name));
  }
  if (flags.listen_host.empty()) {
    return "--listen-host: expected the name or address of an interface of "
           "this machine, got nothing";
  }
  if (flags.insecure) return "";
  std::string why = NeedsInsecure("--coordinator", coordinator->host);
  if (why.empty()) why = NeedsInsecure("--listen-host", flags.listen_host);
  return why;
}

}  // namespace

std::variant<WorkerFlags, TrainerOptions, SayAndExit> ParseCommandLine(
    const std::vector<std::string>& arguments, const MachineDefaults& machine) {
  WorkerFlags flags;
  flags.name = WorkerNameOf(machine.host_name);
  flags.threads = std::clamp(machine.core_count, 1, 1024);
  TrainerOptions trainer;

  CLI::App app(
      "A worker of Lockstep: keeps a trainer on one device, and keeps in "
      "contact with the coordinator,\nwhich gives it a part in training jobs.  "
      "Ends on SIGTERM or Ctrl-C.",
      "lockstep-worker");
  app.set_version_flag("--version", kVersion);
  app.add_option("--coordinator", flags.coordinator,
                 "Where the coordinator listens.  Default: 127.0.0.1:7600")
      ->type_name("HOST:PORT");
  app.add_option("--name", flags.name,
                 absl::StrCat("Its name, of which there must be no other; "
                              "capitals become small letters.  Default: the "
                              "host's, ",
                              flags.name))
      ->type_name("NAME");
  app.add_option("--device", flags.device, "What it computes on.  Default: cpu")
      ->type_name("KIND")
      ->check(CLI::IsMember({"cpu"}));
  app.add_option("--threads", flags.threads,
                 absl::StrCat("Threads that compute; they change the time it "
                              "takes and nothing else.  Default: one a core, ",
                              flags.threads))
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  double memory_gib = 0;
  app.add_option("--memory", memory_gib,
                 "Memory that jobs may take here, in GiB.  Default: all that "
                 "the host has, or its container;\nwhere several workers share "
                 "it, give each its part")
      ->type_name("GIB")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return PositiveNumberFault(text, kGibMax);
          },
          ""));
  app.add_option("--listen-host", flags.listen_host,
                 "The name or address of this machine at which the other "
                 "workers of a job reach this one.\nDefault: 127.0.0.1")
      ->type_name("HOST");
  AddCollectives(&app, &flags.collectives);
  app.add_flag("--insecure", flags.insecure,
               "Allow connections to and from other machines, without "
               "encryption, on a network that you trust");
  AddDuration(&app, "--start-timeout", &flags.start_timeout,
              "How long a trainer may take until it is ready.");
  AddDuration(&app, "--abort-timeout", &flags.abort_timeout,
              "How long a trainer may take to let go of a job, before it is "
              "killed and replaced.");
  AddDuration(
      &app, "--progress-timeout", &flags.progress_timeout,
      "How long a trainer may train without going on (a gradient of a "
      "tensor, a batch of an evaluation, a tensor written), before it "
      "is killed and replaced.  With less than 5m, after which it gives "
      "up another worker that it waits for, it may be killed for "
      "waiting.");
  AddDuration(&app, "--name-taken-patience", &flags.name_taken_patience,
              "How long to ask again when another worker has the name.");

  // Not for people.
  CLI::App* command = app.add_subcommand("trainer", "The daemon's own child.");
  command->group("");
  command->add_option("--link-fd", trainer.link_fd)->required();
  command->add_option("--agent-pid", trainer.agent_process_id)->required();
  command->add_option("--worker", trainer.worker.value)->required();
  command->add_option("--device", trainer.device)->required();
  command->add_option("--threads", trainer.threads)
      ->required()
      ->check(CLI::Range(1, 1024));
  command->add_option("--memory-bytes", trainer.memory_bytes)->required();
  command->add_option("--listen-host", trainer.listen_host)->required();
  AddCollectives(command, &trainer.collectives)->required();
  command->add_option("--lock-key", trainer.lock_key)->required();
  AddDuration(command, "--lock-timeout", &trainer.lock_timeout, "");

  // CLI11 takes them from the back, without the program's name.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  if (!reversed.empty()) reversed.pop_back();
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    const int code = app.exit(error, out, err);
    if (code == 0) return SayAndExit{.out = out.str()};
    return SayAndExit{
        .err = absl::StrCat("lockstep-worker: error: ", error.what(),
                            "\nlockstep-worker --help explains its options.\n"),
        .code = kExitUsage};
  }
  if (command->parsed()) return trainer;
  absl::AsciiStrToLower(&flags.name);
  // A worker without memory would be one that nothing is known of.
  flags.memory_bytes = std::llround(std::ldexp(memory_gib, 30));
  if (const std::string why = Check(flags); !why.empty()) {
    return SayAndExit{
        .err = absl::StrCat("lockstep-worker: error: ", why, "\n"),
        .code = kExitUsage};
  }
  return flags;
}

std::vector<std::string> TrainerArguments(const WorkerFlags& flags) {
  return {"lockstep-worker", "trainer", "--worker", flags.name, "--device",
          flags.device, "--threads", absl::StrCat(flags.threads),
          "--memory-bytes", absl::StrCat(flags.memory_bytes), "--listen-host",
          flags.listen_host, "--collectives", NameOf(flags.collectives),
          // One name at one coordinator is one worker, however often it is
          // started; others may share a CPU.
          "--lock-key",
          absl::StrCat(flags.device, " ", flags.name, " ", flags.coordinator),
          // So that it is the trainer who gives up, and says on whom.
          "--lock-timeout", absl::FormatDuration(flags.start_timeout * 0.75)};
}

std::string WorkerNameOf(absl::string_view host_name) {
  std::string name;
  for (const char c : host_name) {
    const char lower = absl::ascii_tolower(c);
    const bool plain = absl::ascii_isdigit(lower) || absl::ascii_islower(lower);
    if (name.empty() && !plain) continue;
    if (name.size() == 63) break;
    name.push_back(plain || lower == '.' ? lower : '-');
  }
  return name.empty() ? "worker" : name;
}

}  // namespace lockstep
