#include "common/session_proto.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "common/serialize.h"
#include "common/time_proto.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

// Paths of fields that `message` leaves unset, all the way down; of a oneof one
// is enough.  A JobSpec is passed on whole and is not looked into.
void CollectUnset(const Message& message, const std::string& prefix,
                  std::vector<std::string>& unset) {
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  if (descriptor == v1::JobSpec::descriptor()) return;
  if (descriptor->full_name() == "google.protobuf.Duration") return;
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const std::string path = prefix + field->name();
    const auto* oneof = field->real_containing_oneof();
    if (oneof != nullptr && reflection->HasOneof(message, oneof) &&
        !reflection->HasField(message, field)) {
      continue;
    }
    const bool set = field->is_repeated()
                         ? reflection->FieldSize(message, field) > 0
                         : reflection->HasField(message, field);
    if (!set) {
      unset.push_back(path);
      continue;
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->is_repeated()) {
      for (int j = 0; j < reflection->FieldSize(message, field); ++j) {
        CollectUnset(reflection->GetRepeatedMessage(message, field, j),
                     path + ".", unset);
      }
    } else {
      CollectUnset(reflection->GetMessage(message, field), path + ".", unset);
    }
  }
}

// A message with every field set to something that is not its default must
// come back the same: so no field, of today or of tomorrow, is forgotten.
template <typename Proto>
void ExpectComesBackWhole(const Proto& proto) {
  std::vector<std::string> unset;
  CollectUnset(proto, "", unset);
  EXPECT_THAT(unset, testing::IsEmpty());

  auto value = FromProto(proto);

  ASSERT_TRUE(value.ok()) << value.status();
  const Proto back = ToProto(*value);
  std::string difference;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(proto, back)) << difference;
}

v1::HeldGeneration FullHeld() {
  v1::HeldGeneration held;
  held.set_job("j-1");
  held.set_generation(7);
  held.set_rank(1);
  held.set_phase(v1::Worker::FAILED);
  held.set_committed_step_count(100);
  held.set_max_steps(200);
  held.add_addresses("");
  held.add_addresses(std::string("\xFF\x00\x01", 3));
  held.set_nonce("n0nce");
  held.mutable_failure()->set_cause(v1::Failure::PEER);
  held.mutable_failure()->set_code(14);
  held.mutable_failure()->set_message("connection to rank 2 broke");
  held.mutable_failure()->set_peer_rank(2);
  held.set_detail("waits");
  held.set_collectives(v1::Worker::SHARED_MEMORY);
  held.set_first_step(8);
  v1::LedgerRow& row = *held.add_ledger();
  row.set_generation(2);
  row.set_plan_version(1);
  row.set_first_step(3);
  row.set_end_step(8);
  row.add_workers("workers/w0");
  row.add_micro_batches()->set_first(2);
  row.mutable_micro_batches(0)->set_count(4);
  return held;
}

v1::WorkerStatus FullStatus() {
  v1::WorkerStatus status;
  status.set_applied_sequence(3);
  status.set_trainer_ready(true);
  status.set_trainer_death_count(2);
  status.set_last_trainer_death("killed by signal 9");
  *status.mutable_held() = FullHeld();
  return status;
}

v1::Hello FullHello() {
  v1::Hello hello;
  hello.set_worker("w0");
  hello.set_incarnation(5);
  hello.set_stream(6);
  v1::DeviceInfo* device = hello.mutable_device();
  device->set_kind("cpu");
  device->set_model("Zen 5");
  device->set_numeric_class("cpu/avx512/onednn-2.6.3");
  device->set_memory_bytes(int64_t{1} << 34);
  device->set_thread_count(2);
  device->set_host("node-1");
  device->set_process_id(4711);
  device->set_version("1.2");
  device->set_has_bfloat16(true);
  v1::DeviceRates* rates = device->mutable_rates();
  rates->set_float32_flops_per_second(1e11);
  rates->set_bfloat16_flops_per_second(2e11);
  rates->set_memory_bytes_per_second(3e10);
  rates->set_shared_memory_bytes_per_second(4e9);
  rates->set_network_bytes_per_second(5e9);
  *hello.mutable_status() = FullStatus();
  hello.set_coordinator_incarnation(9);
  return hello;
}

v1::Command FullPrepare() {
  v1::Command command;
  command.set_sequence(1);
  v1::Prepare* prepare = command.mutable_prepare();
  prepare->set_job("j-1");
  prepare->set_generation(2);
  prepare->set_rank(1);
  prepare->add_workers("w0");
  prepare->add_workers("w1");
  prepare->mutable_spec()->set_display_name("test");
  prepare->mutable_spec()->mutable_data()->add_files("/a");
  prepare->mutable_spec()->mutable_numerics()->set_seed(4);
  return command;
}

v1::Command FullStart() {
  v1::Command command;
  command.set_sequence(2);
  v1::Start* start = command.mutable_start();
  start->set_job("j-1");
  start->set_generation(2);
  start->add_peer_addresses("\x01\xFE");
  start->set_first_step(10);
  start->set_plan_version(3);
  v1::MicroBatchRange* range = start->add_micro_batches();
  range->set_first(5);
  range->set_count(4);
  start->set_nonce("n0nce");
  return command;
}

v1::Command FullRelease() {
  v1::Command command;
  command.set_sequence(3);
  command.mutable_release()->set_job("j-1");
  command.mutable_release()->set_generation(2);
  command.mutable_release()->set_reason("the job has ended");
  return command;
}

v1::Command FullCommitOutput() {
  v1::Command command;
  command.set_sequence(4);
  command.mutable_commit_output()->set_job("j-1");
  command.mutable_commit_output()->set_generation(2);
  return command;
}

v1::Welcome FullWelcome() {
  v1::Welcome welcome;
  welcome.set_coordinator_incarnation(3);
  *welcome.mutable_lease() = DurationToProto(absl::Milliseconds(3500));
  *welcome.mutable_beat_interval() = DurationToProto(absl::Milliseconds(750));
  return welcome;
}

TEST(SessionProtoTest, EveryFieldComesBack) {
  ExpectComesBackWhole(FullHello());
  ExpectComesBackWhole(FullStatus());
  ExpectComesBackWhole(FullWelcome());
  ExpectComesBackWhole(FullPrepare());
  ExpectComesBackWhole(FullStart());
  ExpectComesBackWhole(FullRelease());
  ExpectComesBackWhole(FullCommitOutput());
}

TEST(SessionProtoTest, AbsentPartsStayAbsent) {
  const WorkerStatus status;
  const auto back = FromProto(ToProto(status));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, status);

  const HeldGeneration held = {.key = {{"j"}, 1}};
  const auto held_back = FromProto(ToProto(held));
  ASSERT_TRUE(held_back.ok()) << held_back.status();
  EXPECT_EQ(*held_back, held);
}

TEST(SessionProtoTest, EveryPhaseAndCauseComesBack) {
  for (const Phase phase :
       {Phase::kPreparing, Phase::kJoined, Phase::kConnecting, Phase::kTraining,
        Phase::kOutputReady, Phase::kFinished, Phase::kFailed,
        Phase::kAborting}) {
    EXPECT_EQ(FromProto(ToProto(phase)).value(), phase);
    EXPECT_EQ(v1::Worker::Phase_Name(ToProto(phase)), PhaseName(phase));
  }
  for (const Failure::Cause cause :
       {Failure::Cause::kWorker, Failure::Cause::kJob, Failure::Cause::kPeer}) {
    const Failure failure = {
        .cause = cause, .code = absl::StatusCode::kInternal, .message = "m"};
    EXPECT_EQ(FromProto(ToProto(failure)).value(), failure);
  }
}

TEST(SessionProtoTest, ThePreparedSpecIsTheSameBytes) {
  v1::JobSpec spec;
  spec.set_display_name("x");
  spec.mutable_model()->mutable_gpt2()->set_n_embd(4);
  const auto bytes =
      std::make_shared<const std::string>(SerializeDeterministically(spec));
  const Command command = {
      1,
      Prepare{.key = {{"j"}, 1}, .rank = 0, .workers = {{"w"}}, .spec = bytes}};

  const auto back = FromProto(ToProto(command));

  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*std::get<Prepare>(back->body).spec, *bytes);
}

TEST(SessionProtoTest, AFailureIsNeverOk) {
  v1::Failure proto;
  proto.set_code(0);
  EXPECT_EQ(FromProto(proto)->code, absl::StatusCode::kUnknown);
  EXPECT_EQ(FromProto(proto)->cause, Failure::Cause::kWorker);
  proto.set_code(17);
  EXPECT_EQ(FromProto(proto)->code, absl::StatusCode::kUnknown);
}

TEST(SessionProtoTest, TextForPeopleAlwaysParses) {
  WorkerStatus status;
  status.last_trainer_death = std::string("\xFFlast line \x00\xC3", 13);

  v1::WorkerStatus parsed;
  ASSERT_TRUE(parsed.ParseFromString(ToProto(status).SerializeAsString()));

  EXPECT_EQ(parsed.last_trainer_death(), "?last line ??");
}

TEST(SessionProtoTest, LongTextForPeopleIsCutBetweenCharacters) {
  EXPECT_EQ(PeopleText(std::string(kPeopleTextBytesMax, 'x')).size(),
            kPeopleTextBytesMax);
  EXPECT_EQ(PeopleText(std::string(kPeopleTextBytesMax + 1, 'x')).size(),
            kPeopleTextBytesMax);
  const std::string head(kPeopleTextBytesMax - 1, 'x');
  EXPECT_EQ(PeopleText(head + "\xC3\xA9"), head);
  EXPECT_EQ(PeopleText("a\n\tb \x1B[31mred\x7F \xC3\xA9\r"),
            "a\n\tb ?[31mred? \xC3\xA9?");
  EXPECT_EQ(PeopleText(std::string(kPeopleTextBytesMax + 9, '\x80')),
            std::string(kPeopleTextBytesMax - 4, '?'));
}

template <typename Proto>
void ExpectFault(Proto proto, const std::function<void(Proto&)>& break_it,
                 const std::string& expected) {
  break_it(proto);
  const auto value = FromProto(proto);
  ASSERT_FALSE(value.ok()) << expected;
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr(expected));
}

TEST(SessionProtoTest, FaultsNameTheFieldAndWhatWasExpected) {
  using H = v1::Hello;
  const H hello = FullHello();
  ExpectFault<H>(
      hello, [](H& h) { h.set_worker("W!"); },
      "worker: expected 1 to 63 letters");
  ExpectFault<H>(
      hello, [](H& h) { h.set_incarnation(0); },
      "incarnation: expected at least 1, got 0");
  ExpectFault<H>(
      hello, [](H& h) { h.set_stream(-1); },
      "stream: expected at least 1, got -1");
  ExpectFault<H>(
      hello, [](H& h) { h.set_coordinator_incarnation(-1); },
      "coordinator_incarnation: expected at least 0");
  ExpectFault<H>(
      hello, [](H& h) { h.clear_device(); }, "device: missing");
  ExpectFault<H>(
      hello, [](H& h) { h.mutable_device()->clear_numeric_class(); },
      "device: numeric_class: missing");
  ExpectFault<H>(
      hello,
      [](H& h) {
        h.mutable_device()->set_numeric_class(std::string(257, 'x'));
      },
      "device: numeric_class: expected at most 256 bytes of printable text");
  ExpectFault<H>(
      hello, [](H& h) { h.mutable_device()->set_kind("a\nb"); },
      "device: kind: expected at most 256 bytes of printable text, got "
      "\"a\\nb\"");
  ExpectFault<H>(
      hello,
      [](H& h) {
        h.mutable_status()->mutable_held()->set_addresses(
            1, std::string(4097, 'x'));
      },
      "status: held: addresses[1]: expected at most 4096 bytes, got 4097");
  ExpectFault<H>(
      hello, [](H& h) { h.mutable_device()->set_memory_bytes(-1); },
      "device: memory_bytes: expected at least 0");
  ExpectFault<H>(
      hello, [](H& h) { h.mutable_device()->set_thread_count(-1); },
      "device: thread_count: expected at least 0");
  ExpectFault<H>(
      hello, [](H& h) { h.clear_status(); }, "status: missing");

  using S = v1::WorkerStatus;
  const S status = FullStatus();
  ExpectFault<S>(
      status, [](S& s) { s.set_applied_sequence(-1); },
      "applied_sequence: expected at least 0");
  ExpectFault<S>(
      status, [](S& s) { s.set_trainer_death_count(-1); },
      "trainer_death_count: expected at least 0");
  ExpectFault<S>(
      status, [](S& s) { s.mutable_held()->set_job("../x"); },
      "held: job: expected 1 to 63 letters");
  ExpectFault<S>(
      status, [](S& s) { s.mutable_held()->set_generation(0); },
      "held: generation: expected at least 1");
  ExpectFault<S>(
      status, [](S& s) { s.mutable_held()->set_rank(-1); },
      "held: rank: expected at least 0");
  ExpectFault<S>(
      status, [](S& s) { s.mutable_held()->set_phase(v1::Worker::FREE); },
      "held: phase: expected that of a held generation, got FREE");
  ExpectFault<S>(
      status,
      [](S& s) {
        s.mutable_held()->set_phase(static_cast<v1::Worker::Phase>(99));
      },
      "held: phase: expected that of a held generation, got 99");
  ExpectFault<S>(
      status, [](S& s) { s.mutable_held()->set_committed_step_count(-1); },
      "held: committed_step_count: expected at least 0");
  ExpectFault<S>(
      status, [](S& s) { s.mutable_held()->set_max_steps(-1); },
      "held: max_steps: expected at least 0");
  ExpectFault<S>(
      status, [](S& s) { s.mutable_held()->clear_failure(); },
      "held: failure: missing");
  ExpectFault<S>(
      status,
      [](S& s) { s.mutable_held()->mutable_failure()->set_peer_rank(-1); },
      "held: failure: peer_rank: expected at least 0");

  using W = v1::Welcome;
  const W welcome = FullWelcome();
  ExpectFault<W>(
      welcome, [](W& w) { w.set_coordinator_incarnation(0); },
      "coordinator_incarnation: expected at least 1");
  ExpectFault<W>(
      welcome, [](W& w) { w.clear_lease(); },
      "lease: expected a positive duration");
  ExpectFault<W>(
      welcome, [](W& w) { w.clear_beat_interval(); },
      "beat_interval: expected a positive duration");

  using C = v1::Command;
  ExpectFault<C>(
      FullRelease(), [](C& c) { c.set_sequence(0); },
      "sequence: expected at least 1");
  ExpectFault<C>(
      FullRelease(), [](C& c) { c.clear_body(); }, "body: missing");
  ExpectFault<C>(
      FullRelease(), [](C& c) { c.mutable_release()->clear_job(); },
      "release: job: expected");
  ExpectFault<C>(
      FullCommitOutput(),
      [](C& c) { c.mutable_commit_output()->set_generation(-3); },
      "commit_output: generation: expected at least 1, got -3");
  ExpectFault<C>(
      FullPrepare(), [](C& c) { c.mutable_prepare()->set_rank(2); },
      "prepare: rank: expected 0 to below the number of workers, 2");
  ExpectFault<C>(
      FullPrepare(), [](C& c) { c.mutable_prepare()->set_workers(1, ""); },
      "prepare: workers[1]: expected");
  ExpectFault<C>(
      FullPrepare(), [](C& c) { c.mutable_prepare()->clear_spec(); },
      "prepare: spec: missing");
  ExpectFault<C>(
      FullStart(), [](C& c) { c.mutable_start()->add_peer_addresses("x"); },
      "start: peer_addresses: expected one for each entry of micro_batches");
  ExpectFault<C>(
      FullStart(), [](C& c) { c.mutable_start()->clear_micro_batches(); },
      "start: micro_batches: missing");
  ExpectFault<C>(
      FullStart(),
      [](C& c) { c.mutable_start()->mutable_micro_batches(0)->set_count(-1); },
      "start: micro_batches[0].count: expected at least 0");
  ExpectFault<C>(
      FullStart(),
      [](C& c) { c.mutable_start()->mutable_micro_batches(0)->set_first(-1); },
      "start: micro_batches[0].first: expected at least 0");
  ExpectFault<C>(
      FullStart(), [](C& c) { c.mutable_start()->set_first_step(-1); },
      "start: first_step: expected at least 0");
  ExpectFault<C>(
      FullStart(), [](C& c) { c.mutable_start()->set_plan_version(0); },
      "start: plan_version: expected at least 1");
}

}  // namespace
}  // namespace lockstep
