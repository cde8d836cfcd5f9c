// The agent's end of the link to its trainer.
//
// Never blocks, whatever the trainer does: the caller polls fd() and calls
// Read() and Write() when it is ready.  Not thread-safe.
#ifndef WORKER_LINK_AGENT_LINK_H_
#define WORKER_LINK_AGENT_LINK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/session.h"
#include "worker/link/frame.h"
#include "worker/link/unique_fd.h"

namespace lockstep {

// What a trainer says.
struct TrainerReady {};
struct TrainerHolds {
  std::optional<HeldGeneration> held;  // No value once it has let go.
};
struct TrainerStepReport {
  GenerationKey key;
  int64_t step = 0;
  std::string report;  // A serialized v1::StepMetrics.
};
struct TrainerProgress {};
using TrainerMessage = std::variant<TrainerReady, TrainerHolds,
                                    TrainerStepReport, TrainerProgress>;

class AgentLink {
 public:
  // `socket`: one end of a connected pair of stream sockets, which is set to
  // not block.
  explicit AgentLink(UniqueFd socket);

  int fd() const { return socket_.get(); }

  // Gives the trainer a command, as far as the socket takes it; the rest is
  // kept for Write().
  //
  // Errors:
  //   ResourceExhausted: the trainer has not read for so long that
  //     kUnwrittenBytesMax wait for it.
  //   Unavailable: the trainer has closed its end.
  absl::Status Send(const CommandBody& command);

  // Whether Write() has work once fd() is writable.
  bool wants_write() const { return written_ < unwritten_.size(); }

  // Errors:
  //   Unavailable: the trainer has closed its end.
  absl::Status Write();

  // Appends what the trainer has said to `messages`; at most about
  // kReadBytesMax at once, so that one that never stops talking does not keep
  // its caller.  No message and no error: there is nothing to read now.
  //
  // Errors, each final; what was said before is still appended:
  //   Unavailable: the trainer has closed its end.
  //   InvalidArgument: this is nothing a trainer says.
  absl::Status Read(std::vector<TrainerMessage>& messages);

  static constexpr size_t kUnwrittenBytesMax = 2 * kFrameBytesMax;
  static constexpr size_t kReadBytesMax = 64 << 10;

 private:
  absl::Status Parse(std::vector<TrainerMessage>& messages);

  UniqueFd socket_;
  FrameParser parser_;
  absl::Status garbage_;  // What Read() found, once it has.
  std::string unwritten_;
  size_t written_ = 0;  // Bytes of unwritten_ that the socket has taken.
  int64_t last_sequence_ = 0;
};

}  // namespace lockstep

#endif  // WORKER_LINK_AGENT_LINK_H_
