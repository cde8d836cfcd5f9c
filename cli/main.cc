// The lockstep command: the process around cli/lockstep.h.

#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/lockstep.h"
#include "common/clock.h"

namespace {

// A random UUID (version 4).
std::string MakeUuid() {
  std::random_device random;
  uint32_t words[4];
  for (uint32_t& word : words) word = random();
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%04x%08x", words[0],
                         words[1] >> 16, words[1] & 0xFFF,
                         (words[2] >> 16 & 0x3FFF) | 0x8000, words[2] & 0xFFFF,
                         words[3]);
}

int Columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return 80;
}

}  // namespace

int main(int argc, char** argv) {
  std::error_code error;
  const auto working_folder = std::filesystem::current_path(error);
  if (error) {
    std::cerr << "lockstep: error: the working folder: " << error.message()
              << "\n";
    return 1;
  }
  // A channel that cannot connect is told of once, by us.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);

  lockstep::cli::Environment env{
      .out = std::cout,
      .err = std::cerr,
      .clock = lockstep::RealClock(),
      .terminal = isatty(STDOUT_FILENO) == 1,
      .columns = Columns(),
      .variable = [](const char* name) -> std::optional<std::string> {
        const char* value = std::getenv(name);
        return value == nullptr ? std::nullopt
                                : std::optional<std::string>(value);
      },
      .make_request_id = MakeUuid,
      .working_folder = working_folder.string(),
      .program_folder = program.parent_path().string(),
  };
  const int code = lockstep::cli::RunLockstep(
      std::vector<std::string>(argv + 1, argv + argc), env);
  if (code > 128) {
    // Interrupted, and cleaned up: end as the signal would have, so that a
    // shell script around this ends too.
    std::signal(code - 128, SIG_DFL);
    std::raise(code - 128);
  }
  return code;
}
