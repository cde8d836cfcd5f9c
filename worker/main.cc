// lockstep-worker: the worker daemon, and, as its own child, its trainer.
#include "worker/trainer/trainer_main.h"
#include "worker/worker_main.h"

int main(int argc, char** argv) {
  return lockstep::WorkerMain(argc, argv, lockstep::TrainerMain);
}
