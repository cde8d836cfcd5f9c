// The fake coordinator as a program, for tests of `lockstep run`: takes the
// command line of lockstep-coordinator, and what to play from the environment.
//
//   FAKE_END    the state in which each job ends, at once; without it jobs run
//               until they are cancelled
//   FAKE_PLAY   "die": exits with 7 when a job is submitted
//               "mute": never serves
//               "garbage": writes no port into the port file
//   FAKE_TRACE  a file to which a line is added for each thing that happens

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "cli/fake_coordinator.h"

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void Trace(const std::string& line) {
  std::ofstream(Variable("FAKE_TRACE"), std::ios::app) << line << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  std::string listen, store, port_file;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    (flag == "--listen"  ? listen
     : flag == "--store" ? store
                         : port_file) = argv[i + 1];
  }
  Trace("coordinator pid " + std::to_string(getpid()) + " listen " + listen +
        " store " + store);
  std::cerr << "fake coordinator: started\nfake coordinator: \x1b[2Jbye\n";

  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  const std::string play = Variable("FAKE_PLAY");
  if (play == "mute") {
    int signal = 0;
    sigwait(&mask, &signal);
    return 0;
  }

  lockstep::cli::FakeCoordinator coordinator;
  lockstep::v1::Job job;
  job.set_state(lockstep::v1::Job::RUNNING);
  std::vector<lockstep::v1::Job> course = {job};
  lockstep::v1::Job::State end;
  if (lockstep::v1::Job::State_Parse(Variable("FAKE_END"), &end)) {
    job.set_state(end);
    job.set_state_reason("as scripted");
    job.set_failure_count(std::atoi(Variable("FAKE_FAILURES").c_str()));
    course.push_back(job);
  }
  coordinator.SetCourse(course);
  lockstep::v1::StepMetrics row;
  row.set_job("jobs/job-1");
  row.set_loss(4.5);
  coordinator.SetStepMetrics({row});
  const std::string temporary = port_file + ".new";
  std::ofstream(temporary) << (play == "garbage"
                                   ? "soon"
                                   : std::to_string(coordinator.port()))
                           << "\n";
  std::rename(temporary.c_str(), port_file.c_str());

  size_t submissions = 0, cancellations = 0;
  for (;;) {
    const timespec tick{0, 5'000'000};
    const bool stop = sigtimedwait(&mask, nullptr, &tick) == SIGTERM;
    for (; submissions < coordinator.submissions().size(); ++submissions) {
      const auto request = coordinator.submissions()[submissions];
      Trace("submitted workers " +
            std::to_string(request.spec().parallel().min_workers()) + " to " +
            std::to_string(request.spec().parallel().max_workers()));
      if (play == "die") return 7;
    }
    for (; cancellations < coordinator.cancellations().size();
         ++cancellations) {
      Trace("cancelled");
    }
    if (stop) break;
  }
  Trace("coordinator stops");
  return 0;
}
