#include "common/session_proto.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/printable.h"
#include "common/serialize.h"
#include "common/status.h"
#include "common/time_proto.h"

namespace lockstep {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr size_t kAddressBytesMax = 4096;

// ------------------------------------------------------------- checking

absl::Status Fault(absl::string_view field, absl::string_view expected,
                   absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", got ", got));
}

absl::Status Missing(absl::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": missing"));
}

absl::Status RequireAtLeast(absl::string_view field, int64_t value,
                            int64_t least) {
  if (value >= least) return absl::OkStatus();
  return Fault(field, absl::StrCat("at least ", least), absl::StrCat(value));
}

absl::Status RequireResourceId(absl::string_view field,
                               const std::string& value) {
  if (IsResourceId(value)) return absl::OkStatus();
  return Fault(field,
               "1 to 63 letters a to z, digits, hyphens and dots, beginning "
               "with a letter or digit",
               Quoted(value));
}

// Text that is compared or handed on, not shown: a line, and no long one.
absl::Status RequireShortLine(absl::string_view field, const std::string& value,
                              size_t bytes_max) {
  if (value.size() <= bytes_max && IsPrintableUtf8(value)) {
    return absl::OkStatus();
  }
  return Fault(field,
               absl::StrCat("at most ", bytes_max, " bytes of printable text"),
               Quoted(value));
}

template <typename Proto>
absl::StatusOr<GenerationKey> KeyFromProto(const Proto& proto) {
  RETURN_IF_ERROR(RequireResourceId("job", proto.job()));
  RETURN_IF_ERROR(RequireAtLeast("generation", proto.generation(), 1));
  return GenerationKey{{proto.job()}, proto.generation()};
}

template <typename Proto>
void KeyToProto(const GenerationKey& key, Proto& proto) {
  proto.set_job(key.job.value);
  proto.set_generation(key.generation);
}

// ------------------------------------------------------------- commands

v1::Prepare ToProto(const Prepare& prepare) {
  v1::Prepare proto;
  KeyToProto(prepare.key, proto);
  proto.set_rank(prepare.rank);
  for (const WorkerId& worker : prepare.workers) {
    proto.add_workers(worker.value);
  }
  LS_CHECK(prepare.spec != nullptr);
  LS_CHECK(proto.mutable_spec()->ParseFromString(*prepare.spec));
  if (prepare.zero_stage.has_value()) {
    proto.mutable_spec()->mutable_parallel()->set_zero_stage(
        *prepare.zero_stage);
  }
  return proto;
}

absl::StatusOr<Prepare> FromProto(const v1::Prepare& proto) {
  Prepare prepare;
  ASSIGN_OR_RETURN(prepare.key, KeyFromProto(proto));
  for (const std::string& worker : proto.workers()) {
    RETURN_IF_ERROR(RequireResourceId(
        absl::StrCat("workers[", prepare.workers.size(), "]"), worker));
    prepare.workers.push_back({worker});
  }
  if (proto.rank() < 0 || proto.rank() >= proto.workers_size()) {
    return Fault("rank",
                 absl::StrCat("0 to below the number of workers, ",
                              proto.workers_size()),
                 absl::StrCat(proto.rank()));
  }
  prepare.rank = proto.rank();
  if (!proto.has_spec()) return Missing("spec");
  prepare.spec = std::make_shared<const std::string>(
      SerializeDeterministically(proto.spec()));
  if (proto.spec().parallel().has_zero_stage()) {
    prepare.zero_stage = proto.spec().parallel().zero_stage();
  }
  return prepare;
}

v1::Start ToProto(const Start& start) {
  v1::Start proto;
  KeyToProto(start.key, proto);
  for (const std::string& address : start.peer_addresses) {
    proto.add_peer_addresses(address);
  }
  proto.set_first_step(start.first_step);
  proto.set_plan_version(start.plan_version);
  for (const MicroBatchRange& range : start.micro_batches) {
    v1::MicroBatchRange* out = proto.add_micro_batches();
    out->set_first(static_cast<int32_t>(range.first));
    out->set_count(static_cast<int32_t>(range.count));
  }
  proto.set_nonce(start.nonce);
  return proto;
}

absl::StatusOr<Start> FromProto(const v1::Start& proto) {
  Start start;
  ASSIGN_OR_RETURN(start.key, KeyFromProto(proto));
  if (proto.micro_batches().empty()) return Missing("micro_batches");
  if (proto.peer_addresses_size() != proto.micro_batches_size()) {
    return Fault("peer_addresses",
                 absl::StrCat("one for each entry of micro_batches, ",
                              proto.micro_batches_size()),
                 absl::StrCat(proto.peer_addresses_size()));
  }
  start.peer_addresses.assign(proto.peer_addresses().begin(),
                              proto.peer_addresses().end());
  RETURN_IF_ERROR(RequireAtLeast("first_step", proto.first_step(), 0));
  start.first_step = proto.first_step();
  RETURN_IF_ERROR(RequireAtLeast("plan_version", proto.plan_version(), 1));
  start.plan_version = proto.plan_version();
  for (const v1::MicroBatchRange& range : proto.micro_batches()) {
    const std::string at =
        absl::StrCat("micro_batches[", start.micro_batches.size(), "].");
    RETURN_IF_ERROR(RequireAtLeast(at + "first", range.first(), 0));
    RETURN_IF_ERROR(RequireAtLeast(at + "count", range.count(), 0));
    start.micro_batches.push_back({range.first(), range.count()});
  }
  start.nonce = proto.nonce();
  return start;
}

v1::Release ToProto(const Release& release) {
  v1::Release proto;
  KeyToProto(release.key, proto);
  proto.set_reason(PeopleText(release.reason));
  return proto;
}

absl::StatusOr<Release> FromProto(const v1::Release& proto) {
  Release release;
  ASSIGN_OR_RETURN(release.key, KeyFromProto(proto));
  release.reason = PeopleText(proto.reason());
  return release;
}

v1::CommitOutput ToProto(const CommitOutput& commit) {
  v1::CommitOutput proto;
  KeyToProto(commit.key, proto);
  return proto;
}

absl::StatusOr<CommitOutput> FromProto(const v1::CommitOutput& proto) {
  CommitOutput commit;
  ASSIGN_OR_RETURN(commit.key, KeyFromProto(proto));
  return commit;
}

absl::StatusOr<CommandBody> BodyFromProto(const v1::Command& proto) {
  // The error of the part named by the case, or its value.
  auto part = [](absl::string_view name,
                 auto value) -> absl::StatusOr<CommandBody> {
    if (!value.ok()) return Annotate(value.status(), name);
    return CommandBody(*std::move(value));
  };
  switch (proto.body_case()) {
    case v1::Command::kPrepare:
      return part("prepare", FromProto(proto.prepare()));
    case v1::Command::kStart:
      return part("start", FromProto(proto.start()));
    case v1::Command::kRelease:
      return part("release", FromProto(proto.release()));
    case v1::Command::kCommitOutput:
      return part("commit_output", FromProto(proto.commit_output()));
    case v1::Command::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "body: missing, or of a newer version's kind");
}

}  // namespace

std::string PeopleText(absl::string_view text) {
  const bool cut = text.size() > kPeopleTextBytesMax;
  std::string out(text.substr(0, kPeopleTextBytesMax));
  // A character that the cut halved goes whole.
  if (cut) {
    size_t end = out.size();
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80 &&
           out.size() - end < 4) {
      --end;
    }
    out.resize(end);
  }
  // A terminal would obey them.
  for (char& c : out) {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 0x20 && c != '\n' && c != '\t') || code == 0x7F) c = '?';
  }
  size_t at = 0;
  while (true) {
    const std::optional<size_t> bad =
        FindInvalidUtf8(absl::string_view(out).substr(at));
    if (!bad.has_value()) return out;
    at += *bad;
    out[at] = '?';
  }
}

v1::Worker::Phase ToProto(Phase phase) {
  switch (phase) {
    case Phase::kPreparing:
      return v1::Worker::PREPARING;
    case Phase::kJoined:
      return v1::Worker::JOINED;
    case Phase::kConnecting:
      return v1::Worker::CONNECTING;
    case Phase::kTraining:
      return v1::Worker::TRAINING;
    case Phase::kOutputReady:
      return v1::Worker::OUTPUT_READY;
    case Phase::kFinished:
      return v1::Worker::FINISHED;
    case Phase::kFailed:
      return v1::Worker::FAILED;
    case Phase::kAborting:
      return v1::Worker::ABORTING;
  }
  return v1::Worker::PHASE_UNSPECIFIED;
}

v1::Worker::Collectives ToProto(CollectivesInUse collectives) {
  switch (collectives) {
    case CollectivesInUse::kNone:
      return v1::Worker::COLLECTIVES_UNSPECIFIED;
    case CollectivesInUse::kTcp:
      return v1::Worker::TCP;
    case CollectivesInUse::kSharedMemory:
      return v1::Worker::SHARED_MEMORY;
  }
  return v1::Worker::COLLECTIVES_UNSPECIFIED;
}

absl::StatusOr<Phase> FromProto(v1::Worker::Phase phase) {
  switch (phase) {
    case v1::Worker::PREPARING:
      return Phase::kPreparing;
    case v1::Worker::JOINED:
      return Phase::kJoined;
    case v1::Worker::CONNECTING:
      return Phase::kConnecting;
    case v1::Worker::TRAINING:
      return Phase::kTraining;
    case v1::Worker::OUTPUT_READY:
      return Phase::kOutputReady;
    case v1::Worker::FINISHED:
      return Phase::kFinished;
    case v1::Worker::FAILED:
      return Phase::kFailed;
    case v1::Worker::ABORTING:
      return Phase::kAborting;
    default:
      break;
  }
  const std::string name = v1::Worker::Phase_Name(phase);
  return Fault("phase", "that of a held generation",
               name.empty() ? absl::StrCat(static_cast<int>(phase)) : name);
}

namespace {

v1::DeviceRates ToProto(const DeviceRates& rates) {
  v1::DeviceRates proto;
  proto.set_float32_flops_per_second(rates.float32_flops);
  proto.set_bfloat16_flops_per_second(rates.bfloat16_flops);
  proto.set_memory_bytes_per_second(rates.memory_bytes);
  proto.set_shared_memory_bytes_per_second(rates.shared_memory_bytes);
  proto.set_network_bytes_per_second(rates.network_bytes);
  return proto;
}

// What is no rate counts as not known.
DeviceRates FromProto(const v1::DeviceRates& proto) {
  const auto rate = [](double value) {
    return std::isfinite(value) && value > 0 ? value : 0;
  };
  return {.float32_flops = rate(proto.float32_flops_per_second()),
          .bfloat16_flops = rate(proto.bfloat16_flops_per_second()),
          .memory_bytes = rate(proto.memory_bytes_per_second()),
          .shared_memory_bytes = rate(proto.shared_memory_bytes_per_second()),
          .network_bytes = rate(proto.network_bytes_per_second())};
}

}  // namespace

v1::DeviceInfo ToProto(const DeviceDescription& device) {
  v1::DeviceInfo proto;
  proto.set_kind(device.kind);
  proto.set_model(PeopleText(device.model));
  proto.set_numeric_class(device.numeric_class);
  proto.set_has_bfloat16(device.has_bfloat16);
  proto.set_memory_bytes(device.memory_bytes);
  proto.set_thread_count(device.thread_count);
  proto.set_host(PeopleText(device.host));
  proto.set_process_id(device.process_id);
  proto.set_version(PeopleText(device.version));
  *proto.mutable_rates() = ToProto(device.rates);
  return proto;
}

absl::StatusOr<DeviceDescription> FromProto(const v1::DeviceInfo& proto) {
  // A job is bound to its workers' class: none would match any.
  if (proto.numeric_class().empty()) return Missing("numeric_class");
  RETURN_IF_ERROR(
      RequireShortLine("numeric_class", proto.numeric_class(), kNameBytesMax));
  RETURN_IF_ERROR(RequireShortLine("kind", proto.kind(), kNameBytesMax));
  RETURN_IF_ERROR(RequireAtLeast("memory_bytes", proto.memory_bytes(), 0));
  RETURN_IF_ERROR(RequireAtLeast("thread_count", proto.thread_count(), 0));
  return DeviceDescription{.kind = proto.kind(),
                           .model = PeopleText(proto.model()),
                           .numeric_class = proto.numeric_class(),
                           .has_bfloat16 = proto.has_bfloat16(),
                           .memory_bytes = proto.memory_bytes(),
                           .thread_count = proto.thread_count(),
                           .host = PeopleText(proto.host()),
                           .process_id = proto.process_id(),
                           .version = PeopleText(proto.version()),
                           .rates = FromProto(proto.rates())};
}

v1::Failure ToProto(const Failure& failure) {
  v1::Failure proto;
  switch (failure.cause) {
    case Failure::Cause::kWorker:
      proto.set_cause(v1::Failure::WORKER);
      break;
    case Failure::Cause::kJob:
      proto.set_cause(v1::Failure::JOB);
      break;
    case Failure::Cause::kPeer:
      proto.set_cause(v1::Failure::PEER);
      break;
  }
  proto.set_code(static_cast<int>(failure.code));
  proto.set_message(PeopleText(failure.message));
  if (failure.peer_rank.has_value()) proto.set_peer_rank(*failure.peer_rank);
  return proto;
}

absl::StatusOr<Failure> FromProto(const v1::Failure& proto) {
  Failure failure;
  switch (proto.cause()) {
    case v1::Failure::JOB:
      failure.cause = Failure::Cause::kJob;
      break;
    case v1::Failure::PEER:
      failure.cause = Failure::Cause::kPeer;
      break;
    default:  // Also a newer version's cause.
      failure.cause = Failure::Cause::kWorker;
      break;
  }
  // A failure that calls itself OK, or by a code that we do not know, is one
  // all the same.
  failure.code = proto.code() >= 1 && proto.code() <= 16
                     ? static_cast<absl::StatusCode>(proto.code())
                     : absl::StatusCode::kUnknown;
  failure.message = PeopleText(proto.message());
  if (proto.has_peer_rank()) {
    RETURN_IF_ERROR(RequireAtLeast("peer_rank", proto.peer_rank(), 0));
    failure.peer_rank = proto.peer_rank();
  }
  return failure;
}

v1::LedgerRow ToProto(const LedgerRow& row) {
  v1::LedgerRow proto;
  proto.set_generation(row.generation);
  proto.set_plan_version(row.plan_version);
  proto.set_first_step(row.first_step);
  proto.set_end_step(row.end_step);
  for (const WorkerId& worker : row.workers) {
    proto.add_workers(absl::StrCat("workers/", worker.value));
  }
  for (const MicroBatchRange& range : row.micro_batches) {
    v1::MicroBatchRange* out = proto.add_micro_batches();
    out->set_first(static_cast<int32_t>(range.first));
    out->set_count(static_cast<int32_t>(range.count));
  }
  return proto;
}

absl::StatusOr<LedgerRow> FromProto(const v1::LedgerRow& proto) {
  LedgerRow row;
  RETURN_IF_ERROR(RequireAtLeast("generation", proto.generation(), 1));
  RETURN_IF_ERROR(RequireAtLeast("plan_version", proto.plan_version(), 1));
  RETURN_IF_ERROR(RequireAtLeast("first_step", proto.first_step(), 0));
  RETURN_IF_ERROR(
      RequireAtLeast("end_step", proto.end_step(), proto.first_step()));
  row.generation = proto.generation();
  row.plan_version = proto.plan_version();
  row.first_step = proto.first_step();
  row.end_step = proto.end_step();
  if (proto.workers_size() != proto.micro_batches_size()) {
    return Fault(
        "micro_batches",
        absl::StrCat("one for each of workers, ", proto.workers_size()),
        absl::StrCat(proto.micro_batches_size()));
  }
  for (const std::string& worker : proto.workers()) {
    absl::string_view name = worker;
    absl::ConsumePrefix(&name, "workers/");
    if (!IsResourceId(name)) {
      return Fault("workers", "the name of a worker", Quoted(worker));
    }
    row.workers.push_back({std::string(name)});
  }
  for (const v1::MicroBatchRange& range : proto.micro_batches()) {
    RETURN_IF_ERROR(RequireAtLeast("first", range.first(), 0));
    RETURN_IF_ERROR(RequireAtLeast("count", range.count(), 0));
    row.micro_batches.push_back({range.first(), range.count()});
  }
  return row;
}

v1::HeldGeneration ToProto(const HeldGeneration& held) {
  v1::HeldGeneration proto;
  KeyToProto(held.key, proto);
  proto.set_rank(held.rank);
  proto.set_phase(ToProto(held.phase));
  proto.set_committed_step_count(held.committed_step_count);
  proto.set_max_steps(held.max_steps);
  for (const std::string& address : held.addresses) {
    proto.add_addresses(address);
  }
  proto.set_nonce(held.nonce);
  proto.set_first_step(held.first_step);
  for (const LedgerRow& row : held.ledger) *proto.add_ledger() = ToProto(row);
  if (held.failure.has_value()) {
    *proto.mutable_failure() = ToProto(*held.failure);
  }
  proto.set_detail(PeopleText(held.detail));
  proto.set_collectives(ToProto(held.collectives));
  return proto;
}

absl::StatusOr<HeldGeneration> FromProto(const v1::HeldGeneration& proto) {
  HeldGeneration held;
  ASSIGN_OR_RETURN(held.key, KeyFromProto(proto));
  RETURN_IF_ERROR(RequireAtLeast("rank", proto.rank(), 0));
  held.rank = proto.rank();
  ASSIGN_OR_RETURN(held.phase, FromProto(proto.phase()));
  RETURN_IF_ERROR(
      RequireAtLeast("committed_step_count", proto.committed_step_count(), 0));
  held.committed_step_count = proto.committed_step_count();
  RETURN_IF_ERROR(RequireAtLeast("max_steps", proto.max_steps(), 0));
  held.max_steps = proto.max_steps();
  for (const std::string& address : proto.addresses()) {
    if (address.size() > kAddressBytesMax) {
      return Fault(absl::StrCat("addresses[", held.addresses.size(), "]"),
                   absl::StrCat("at most ", kAddressBytesMax, " bytes"),
                   absl::StrCat(address.size()));
    }
    held.addresses.push_back(address);
  }
  RETURN_IF_ERROR(RequireShortLine("nonce", proto.nonce(), kNameBytesMax));
  held.nonce = proto.nonce();
  RETURN_IF_ERROR(RequireAtLeast("first_step", proto.first_step(), 0));
  held.first_step = proto.first_step();
  for (const v1::LedgerRow& row : proto.ledger()) {
    absl::StatusOr<LedgerRow> parsed = FromProto(row);
    if (!parsed.ok()) return Annotate(parsed.status(), "ledger");
    held.ledger.push_back(*std::move(parsed));
  }
  if (proto.has_failure()) {
    absl::StatusOr<Failure> failure = FromProto(proto.failure());
    if (!failure.ok()) return Annotate(failure.status(), "failure");
    held.failure = *std::move(failure);
  } else if (held.phase == Phase::kFailed) {
    return Missing("failure");
  }
  held.detail = PeopleText(proto.detail());
  // Shown and nothing else: what is not known does no harm.
  for (const CollectivesInUse known :
       {CollectivesInUse::kTcp, CollectivesInUse::kSharedMemory}) {
    if (proto.collectives() == ToProto(known)) held.collectives = known;
  }
  return held;
}

v1::WorkerStatus ToProto(const WorkerStatus& status) {
  v1::WorkerStatus proto;
  proto.set_applied_sequence(status.applied_sequence);
  proto.set_trainer_ready(status.trainer_ready);
  proto.set_trainer_death_count(status.trainer_death_count);
  proto.set_last_trainer_death(PeopleText(status.last_trainer_death));
  if (status.held.has_value()) *proto.mutable_held() = ToProto(*status.held);
  return proto;
}

absl::StatusOr<WorkerStatus> FromProto(const v1::WorkerStatus& proto) {
  WorkerStatus status;
  RETURN_IF_ERROR(
      RequireAtLeast("applied_sequence", proto.applied_sequence(), 0));
  status.applied_sequence = proto.applied_sequence();
  status.trainer_ready = proto.trainer_ready();
  RETURN_IF_ERROR(
      RequireAtLeast("trainer_death_count", proto.trainer_death_count(), 0));
  status.trainer_death_count = proto.trainer_death_count();
  status.last_trainer_death = PeopleText(proto.last_trainer_death());
  if (proto.has_held()) {
    absl::StatusOr<HeldGeneration> held = FromProto(proto.held());
    if (!held.ok()) return Annotate(held.status(), "held");
    status.held = *std::move(held);
  }
  return status;
}

v1::Hello ToProto(const Hello& hello) {
  v1::Hello proto;
  proto.set_worker(hello.worker.value);
  proto.set_incarnation(hello.incarnation.value);
  proto.set_stream(hello.stream);
  *proto.mutable_device() = ToProto(hello.device);
  *proto.mutable_status() = ToProto(hello.status);
  proto.set_coordinator_incarnation(hello.coordinator_incarnation.value);
  return proto;
}

absl::StatusOr<Hello> FromProto(const v1::Hello& proto) {
  Hello hello;
  RETURN_IF_ERROR(RequireResourceId("worker", proto.worker()));
  hello.worker = {proto.worker()};
  RETURN_IF_ERROR(RequireAtLeast("incarnation", proto.incarnation(), 1));
  hello.incarnation = {proto.incarnation()};
  RETURN_IF_ERROR(RequireAtLeast("stream", proto.stream(), 1));
  hello.stream = proto.stream();
  if (!proto.has_device()) return Missing("device");
  absl::StatusOr<DeviceDescription> device = FromProto(proto.device());
  if (!device.ok()) return Annotate(device.status(), "device");
  hello.device = *std::move(device);
  if (!proto.has_status()) return Missing("status");
  absl::StatusOr<WorkerStatus> status = FromProto(proto.status());
  if (!status.ok()) return Annotate(status.status(), "status");
  hello.status = *std::move(status);
  RETURN_IF_ERROR(RequireAtLeast("coordinator_incarnation",
                                 proto.coordinator_incarnation(), 0));
  hello.coordinator_incarnation = {proto.coordinator_incarnation()};
  return hello;
}

v1::Welcome ToProto(const Welcome& welcome) {
  v1::Welcome proto;
  proto.set_coordinator_incarnation(welcome.coordinator_incarnation.value);
  *proto.mutable_lease() = DurationToProto(welcome.lease);
  *proto.mutable_beat_interval() = DurationToProto(welcome.beat_interval);
  return proto;
}

absl::StatusOr<Welcome> FromProto(const v1::Welcome& proto) {
  Welcome welcome;
  RETURN_IF_ERROR(RequireAtLeast("coordinator_incarnation",
                                 proto.coordinator_incarnation(), 1));
  welcome.coordinator_incarnation = {proto.coordinator_incarnation()};
  welcome.lease = DurationFromProto(proto.lease());
  welcome.beat_interval = DurationFromProto(proto.beat_interval());
  for (const auto& [field, value] :
       {std::pair("lease", welcome.lease),
        std::pair("beat_interval", welcome.beat_interval)}) {
    if (value <= absl::ZeroDuration()) {
      return Fault(field, "a positive duration", absl::FormatDuration(value));
    }
  }
  return welcome;
}

v1::Command ToProto(const Command& command) {
  v1::Command proto;
  proto.set_sequence(command.sequence);
  if (const auto* prepare = std::get_if<Prepare>(&command.body)) {
    *proto.mutable_prepare() = ToProto(*prepare);
  } else if (const auto* start = std::get_if<Start>(&command.body)) {
    *proto.mutable_start() = ToProto(*start);
  } else if (const auto* release = std::get_if<Release>(&command.body)) {
    *proto.mutable_release() = ToProto(*release);
  } else {
    *proto.mutable_commit_output() =
        ToProto(std::get<CommitOutput>(command.body));
  }
  return proto;
}

absl::StatusOr<Command> FromProto(const v1::Command& proto) {
  Command command;
  RETURN_IF_ERROR(RequireAtLeast("sequence", proto.sequence(), 1));
  command.sequence = proto.sequence();
  ASSIGN_OR_RETURN(command.body, BodyFromProto(proto));
  return command;
}

}  // namespace lockstep
