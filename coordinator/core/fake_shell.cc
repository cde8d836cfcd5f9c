#include "coordinator/core/fake_shell.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Whether what a crash must not change is the same of both.
bool SameDurable(const JobRecord& a, const JobRecord& b) {
  return std::tie(a.id, a.order, a.request_id, a.spec_digest, a.spec, a.needs,
                  a.state, a.numeric_class, a.zero_stage, a.generation,
                  a.members, a.create_time, a.start_time, a.end_time) ==
         std::tie(b.id, b.order, b.request_id, b.spec_digest, b.spec, b.needs,
                  b.state, b.numeric_class, b.zero_stage, b.generation,
                  b.members, b.create_time, b.start_time, b.end_time);
}

std::string Describe(const GenerationKey& key) {
  return absl::StrCat(key.job.value, "/", key.generation);
}

std::string Describe(const JobRecord& job) {
  std::string members;
  for (const WorkerId& member : job.members) {
    absl::StrAppend(&members, " ", member.value);
  }
  return absl::StrCat(
      job.id.value, " order=", job.order, " request=", job.request_id, " ",
      JobStateName(job.state), " class=", job.numeric_class,
      " generation=", job.generation, " members=", members, " reason=\"",
      job.reason, "\" failures=", job.failure_count,
      " committed=", job.committed_step_count, " best=", job.best_step_count,
      " max=", job.max_steps, " created=", absl::FormatTime(job.create_time));
}

std::string Describe(const WorkerView& view) {
  const auto& held = view.status.held;
  return absl::StrCat(
      view.id.value, "#", view.incarnation.value,
      " contact=", static_cast<int>(view.contact), " reason=\"", view.reason,
      "\" assigned=",
      view.assigned.has_value() ? Describe(*view.assigned) : "none", " held=",
      held.has_value()
          ? absl::StrCat(Describe(held->key), " ", PhaseName(held->phase))
          : "none",
      " applied=", view.status.applied_sequence,
      " seen=", absl::FormatTime(view.last_seen_time));
}

std::string Describe(const Command& command) {
  struct Body {
    std::string operator()(const Prepare& prepare) const {
      return absl::StrCat("Prepare rank=", prepare.rank,
                          " world=", prepare.workers.size());
    }
    std::string operator()(const Start& start) const {
      return absl::StrCat("Start ", absl::StrJoin(start.peer_addresses, ","),
                          " nonce=", start.nonce);
    }
    std::string operator()(const Release& release) const {
      return absl::StrCat("Release ", release.reason);
    }
    std::string operator()(const CommitOutput&) const { return "CommitOutput"; }
  };
  return absl::StrCat(command.sequence, " ", Describe(KeyOf(command.body)), " ",
                      std::visit(Body{}, command.body));
}

}  // namespace

std::string Describe(const Effect& effect) {
  struct Kind {
    std::string operator()(const PersistJob& e) const {
      return absl::StrCat("persist ", Describe(e.record));
    }
    std::string operator()(const EraseJob& e) const {
      return absl::StrCat("erase ", e.job.value);
    }
    std::string operator()(const SendWelcome& e) const {
      return absl::StrCat("welcome ", e.session.value);
    }
    std::string operator()(const SendCommand& e) const {
      return absl::StrCat("command ", e.session.value, " ",
                          Describe(e.command));
    }
    std::string operator()(const CloseSession& e) const {
      return absl::StrCat("close ", e.session.value, " ", e.status.ToString());
    }
    std::string operator()(const PublishJob& e) const {
      return absl::StrCat("job ", Describe(e.record));
    }
    std::string operator()(const PublishWorker& e) const {
      return absl::StrCat("worker ", Describe(e.view));
    }
    std::string operator()(const RetractWorker& e) const {
      return absl::StrCat("retract ", e.worker.value);
    }
  };
  return std::visit(Kind{}, effect);
}

void FakeShell::Carry(const Effects& effects, const Coordinator& core) {
  for (const Effect& effect : effects) {
    const bool failed_before = testing::Test::HasFailure();
    if (const auto* persist = std::get_if<PersistJob>(&effect)) {
      Persist(persist->record);
    } else if (const auto* erase = std::get_if<EraseJob>(&effect)) {
      EXPECT_TRUE(store_.count(erase->job) > 0 &&
                  IsFinal(store_.at(erase->job).state));
      store_.erase(erase->job);
      jobs_.erase(erase->job);
    } else if (const auto* welcome = std::get_if<SendWelcome>(&effect)) {
      ASSERT_EQ(streams_.count(welcome->session), 1u);
      Stream& stream = streams_.at(welcome->session);
      EXPECT_FALSE(stream.welcome.has_value() || stream.closed.has_value());
      stream.welcome = welcome->welcome;
    } else if (const auto* send = std::get_if<SendCommand>(&effect)) {
      CheckCommand(*send);
    } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
      ASSERT_EQ(streams_.count(close->session), 1u);
      EXPECT_FALSE(streams_.at(close->session).closed.has_value());
      EXPECT_FALSE(close->status.ok());
      streams_.at(close->session).closed = close->status;
    } else if (const auto* job = std::get_if<PublishJob>(&effect)) {
      ASSERT_EQ(store_.count(job->record.id), 1u);
      EXPECT_TRUE(SameDurable(job->record, store_.at(job->record.id)));
      jobs_[job->record.id] = job->record;
    } else if (const auto* worker = std::get_if<PublishWorker>(&effect)) {
      workers_[worker->view.id] = worker->view;
    } else if (const auto* retract = std::get_if<RetractWorker>(&effect)) {
      EXPECT_EQ(workers_.erase(retract->worker), 1u);
    }
    if (!failed_before && testing::Test::HasFailure()) {
      ADD_FAILURE() << "by the effect: " << Describe(effect);
    }
  }
  CheckAtRest(core);
}

void FakeShell::Persist(const JobRecord& to) {
  ASSERT_NE(to.spec, nullptr);
  if (auto it = store_.find(to.id); it != store_.end()) {
    const JobRecord& from = it->second;
    EXPECT_GE(to.generation, from.generation);
    EXPECT_TRUE(!IsFinal(from.state) || to.state == from.state);
    EXPECT_TRUE(to.generation != from.generation || to.members == from.members);
    EXPECT_EQ(to.order, from.order);
  }
  EXPECT_EQ(IsFinal(to.state), to.end_time.has_value());
  store_[to.id] = to;
}

void FakeShell::CheckCommand(const SendCommand& send) {
  ASSERT_EQ(streams_.count(send.session), 1u);
  Stream& stream = streams_.at(send.session);
  EXPECT_TRUE(stream.welcome.has_value());
  EXPECT_FALSE(stream.closed.has_value());
  EXPECT_GE(send.command.sequence, 1);
  if (!stream.commands.empty()) {
    EXPECT_EQ(send.command.sequence, stream.commands.back().sequence + 1);
  }
  const CommandBody& body = send.command.body;
  const GenerationKey& key = KeyOf(body);
  const bool release = std::holds_alternative<Release>(body);
  auto it = store_.find(key.job);
  // A worker may hold what this store has never seen or has forgotten, and is
  // told to let go of it.
  if (!release) {
    ASSERT_NE(it, store_.end());
    EXPECT_EQ(it->second.generation, key.generation);
    EXPECT_TRUE(it->second.state == JobState::kForming ||
                it->second.state == JobState::kRunning)
        << JobStateName(it->second.state);
  }
  if (const auto* prepare = std::get_if<Prepare>(&body)) {
    EXPECT_EQ(prepare->workers, it->second.members);
    EXPECT_EQ(prepare->spec, it->second.spec);
  }
  stream.commands.push_back(send.command);
}

void FakeShell::CheckAtRest(const Coordinator& core) {
  std::vector<JobId> published;
  std::map<WorkerId, JobId> place;
  std::map<std::string, JobId> requests;
  for (const auto& [id, record] : jobs_) {
    published.push_back(id);
    const JobRecord* known = core.FindJob(id);
    ASSERT_NE(known, nullptr) << id;
    EXPECT_TRUE(record == *known)
        << "published " << Describe(record) << "\nknown " << Describe(*known);
    EXPECT_TRUE(SameDurable(*known, store_.at(id))) << Describe(*known);
    EXPECT_TRUE(requests.emplace(known->request_id, id).second);
    EXPECT_LE(known->committed_step_count, known->best_step_count);

    const bool active = known->state == JobState::kForming ||
                        known->state == JobState::kRunning;
    const auto world = static_cast<int>(known->members.size());
    if (known->generation > 0) {
      EXPECT_GE(world, known->needs.min_workers);
      EXPECT_LE(world, known->needs.max_workers);
      EXPECT_LE(world, known->needs.micro_batches);
      EXPECT_FALSE(known->numeric_class.empty());
    }
    if (!active) continue;
    EXPECT_GE(known->generation, 1);
    for (const WorkerId& member : known->members) {
      EXPECT_TRUE(place.emplace(member, id).second)
          << member << " has a place in two active generations";
      ASSERT_EQ(workers_.count(member), 1u);
      const WorkerView& view = workers_.at(member);
      EXPECT_EQ(view.assigned, (GenerationKey{id, known->generation}))
          << member;
      EXPECT_NE(view.contact, Contact::kLost) << member;
    }
  }
  EXPECT_EQ(published, core.JobIds());
  EXPECT_EQ(store_.size(), jobs_.size());
}

}  // namespace lockstep
