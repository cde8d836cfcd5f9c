// What main() of lockstep-worker does, with any trainer.
#ifndef WORKER_WORKER_MAIN_H_
#define WORKER_WORKER_MAIN_H_

#include "worker/trainer/trainer_main.h"

namespace lockstep {

// Reads the command line and is the daemon, or, as `trainer`, calls
// `trainer_main` with the log set up.  Returns the exit code: 0 after a signal
// to end, 1 when it cannot go on, 2 for a wrong command line.
int WorkerMain(int argc, char** argv,
               int (*trainer_main)(const TrainerOptions& options));

}  // namespace lockstep

#endif  // WORKER_WORKER_MAIN_H_
