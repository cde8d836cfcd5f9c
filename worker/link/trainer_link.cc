#include "worker/link/trainer_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/session_proto.h"
#include "common/status.h"
#include "worker/link/link.pb.h"

namespace lockstep {
namespace {

absl::Status Gone(absl::string_view how) {
  return absl::UnavailableError(
      absl::StrCat("the agent has closed its link: ", how));
}

}  // namespace

TrainerLink::TrainerLink(UniqueFd socket) : socket_(std::move(socket)) {
  LS_CHECK(fcntl(socket_.get(), F_SETFD, FD_CLOEXEC) == 0);
}

absl::Status TrainerLink::SendReady() {
  link::FromTrainer proto;
  proto.mutable_ready();
  return Send(proto.SerializeAsString());
}

absl::Status TrainerLink::SendHolds(const std::optional<HeldGeneration>& held) {
  link::FromTrainer proto;
  link::Holds& holds = *proto.mutable_holds();
  if (held.has_value()) *holds.mutable_held() = ToProto(*held);
  return Send(proto.SerializeAsString());
}

absl::Status TrainerLink::SendStepReport(const v1::StepMetrics& metrics) {
  link::FromTrainer proto;
  *proto.mutable_step_report() = metrics;
  return Send(proto.SerializeAsString());
}

absl::Status TrainerLink::SendProgress() {
  link::FromTrainer proto;
  proto.mutable_progress();
  return Send(proto.SerializeAsString());
}

absl::Status TrainerLink::Send(absl::string_view payload) {
  std::string frame;
  RETURN_IF_ERROR(AppendFrame(payload, frame));
  MutexLock lock(&send_mutex_);
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t n = send(socket_.get(), frame.data() + sent,
                           frame.size() - sent, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      return Gone(std::strerror(errno));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CommandBody> TrainerLink::Next() {
  char bytes[16 << 10];
  for (;;) {
    ASSIGN_OR_RETURN(const std::optional<std::string> frame, parser_.Next());
    if (frame.has_value()) {
      link::ToTrainer proto;
      if (!proto.ParseFromString(*frame) || !proto.has_command()) {
        return absl::InvalidArgumentError(
            absl::StrCat("link: a frame of ", frame->size(),
                         " bytes that is no ToTrainer message"));
      }
      ASSIGN_OR_RETURN(Command command, FromProto(proto.command()));
      return std::move(command.body);
    }
    const ssize_t n = recv(socket_.get(), bytes, sizeof bytes, 0);
    if (n > 0) {
      parser_.Append({bytes, static_cast<size_t>(n)});
    } else if (n == 0) {
      return Gone(parser_.in_frame() ? "in the middle of a message"
                                     : "end of file");
    } else if (errno != EINTR) {
      return Gone(std::strerror(errno));
    }
  }
}

}  // namespace lockstep
