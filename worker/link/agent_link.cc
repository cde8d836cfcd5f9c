#include "worker/link/agent_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/printable.h"
#include "common/session_proto.h"
#include "common/status.h"
#include "worker/link/link.pb.h"

namespace lockstep {
namespace {

absl::StatusOr<TrainerStepReport> ReadStepReport(const v1::StepMetrics& proto) {
  absl::string_view job = proto.job();
  if (!absl::ConsumePrefix(&job, "jobs/") || !IsResourceId(job)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step_report.job: expected jobs/{job}, got ", Quoted(proto.job())));
  }
  if (proto.generation() < 1 || proto.step() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("step_report: generation=", proto.generation(),
                     " step=", proto.step(), ", expected at least 1 and 0"));
  }
  TrainerStepReport report;
  report.key = {{std::string(job)}, proto.generation()};
  report.step = proto.step();
  report.report = proto.SerializeAsString();
  return report;
}

absl::StatusOr<TrainerMessage> ReadMessage(const std::string& frame) {
  link::FromTrainer proto;
  if (!proto.ParseFromString(frame)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame of ", frame.size(), " bytes that is no FromTrainer message"));
  }
  switch (proto.body_case()) {
    case link::FromTrainer::kReady:
      return TrainerReady{};
    case link::FromTrainer::kHolds: {
      TrainerHolds holds;
      if (proto.holds().has_held()) {
        ASSIGN_OR_RETURN(holds.held, FromProto(proto.holds().held()));
      }
      return holds;
    }
    case link::FromTrainer::kStepReport:
      return ReadStepReport(proto.step_report());
    case link::FromTrainer::kProgress:
      return TrainerProgress();
    case link::FromTrainer::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without a body");
}

absl::Status Closed(const char* call) {
  return absl::UnavailableError(
      absl::StrCat("the trainer has closed its link (", call, ")"));
}

}  // namespace

AgentLink::AgentLink(UniqueFd socket) : socket_(std::move(socket)) {
  const int flags = fcntl(socket_.get(), F_GETFL);
  LS_CHECK(flags >= 0);
  LS_CHECK(fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) == 0);
}

absl::Status AgentLink::Send(const CommandBody& command) {
  link::ToTrainer proto;
  *proto.mutable_command() = ToProto(Command{++last_sequence_, command});
  const std::string payload = proto.SerializeAsString();
  if (unwritten_.size() - written_ + payload.size() > kUnwrittenBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the trainer does not read: ", unwritten_.size() - written_,
        " bytes wait for it"));
  }
  RETURN_IF_ERROR(AppendFrame(payload, unwritten_));
  return Write();
}

absl::Status AgentLink::Write() {
  while (wants_write()) {
    const ssize_t n =
        send(socket_.get(), unwritten_.data() + written_,
             unwritten_.size() - written_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      written_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return absl::OkStatus();
    } else if (errno != EINTR) {
      return Closed("send");
    }
  }
  unwritten_.clear();
  written_ = 0;
  return absl::OkStatus();
}

absl::Status AgentLink::Read(std::vector<TrainerMessage>& messages) {
  RETURN_IF_ERROR(garbage_);
  bool ended = false;
  char bytes[16 << 10];
  for (size_t total = 0; total < kReadBytesMax && !ended;) {
    const ssize_t n = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) {
      parser_.Append({bytes, static_cast<size_t>(n)});
      total += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      break;
    } else {
      // The end of the file, or ECONNRESET: it died with commands unread.
      ended = true;
    }
  }
  garbage_ = Parse(messages);
  RETURN_IF_ERROR(garbage_);
  return ended ? Closed("recv") : absl::OkStatus();
}

absl::Status AgentLink::Parse(std::vector<TrainerMessage>& messages) {
  for (;;) {
    ASSIGN_OR_RETURN(std::optional<std::string> frame, parser_.Next());
    if (!frame.has_value()) return absl::OkStatus();
    ASSIGN_OR_RETURN(TrainerMessage message, ReadMessage(*frame));
    messages.push_back(std::move(message));
  }
}

}  // namespace lockstep
