// A trainer that trains nothing, for tests of the agent: it speaks the link as
// a real one does, and misbehaves as the environment variable FAKE_TRAINER
// says: words, separated by commas.
//
//   exit_at_start    prints two lines and exits with 3, before it is ready
//   never_ready      does not say that it is ready
//   stop             stops itself (SIGSTOP) once it is ready
//   not_reading      reads nothing once it is ready
//   garbage          writes to the link what is no message, once it is ready
//   close_link       closes its link once it is ready, and does not end
//   spam             prints without end, once it is ready
//   crash            prints three lines and dies of SIGSEGV when it is prepared
//   child            has a child that does not end, in its process group
//   ignore_release   does not let go
//   steps=N          takes N steps when it is started, then has its output
//   exit_after_steps exits with 5 after them instead
#ifndef WORKER_AGENT_FAKE_TRAINER_H_
#define WORKER_AGENT_FAKE_TRAINER_H_

#include "worker/trainer/trainer_main.h"

namespace lockstep {

int FakeTrainerMain(const TrainerOptions& options);

}  // namespace lockstep

#endif  // WORKER_AGENT_FAKE_TRAINER_H_
