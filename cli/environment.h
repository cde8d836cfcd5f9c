// What a command touches besides the coordinator, so that tests can give it
// something else.
#ifndef CLI_ENVIRONMENT_H_
#define CLI_ENVIRONMENT_H_

#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "common/clock.h"

namespace lockstep::cli {

struct Environment {
  // Results, and what a watched job does.
  std::ostream& out;

  // Errors and notices.
  std::ostream& err;

  // Times waits, and bounds them.
  Clock& clock;

  // Whether `out` is a terminal; if so, how many columns it has.
  bool terminal = false;
  int columns = 80;

  // An environment variable; nothing if it is not set.
  std::function<std::optional<std::string>(const char*)> variable;

  // A fresh request id, never given before.
  std::function<std::string()> make_request_id;

  // Absolute.  What relative paths on the command line are relative to.
  std::string working_folder;

  // Absolute.  Where this program's own file is.
  std::string program_folder;
};

}  // namespace lockstep::cli

#endif  // CLI_ENVIRONMENT_H_
