// lockstep-worker with a trainer that trains nothing, for tests.
#include "worker/agent/fake_trainer.h"
#include "worker/worker_main.h"

int main(int argc, char** argv) {
  return lockstep::WorkerMain(argc, argv, lockstep::FakeTrainerMain);
}
