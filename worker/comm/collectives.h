// By which way ranks reduce, as an operator may choose.
#ifndef WORKER_COMM_COLLECTIVES_H_
#define WORKER_COMM_COLLECTIVES_H_

namespace lockstep {

enum class Collectives {
  kAuto,          // Shared memory where all ranks share it, else TCP.
  kTcp,           // TCP, for all ranks as soon as one says so.
  kSharedMemory,  // Shared memory or nothing.
};

}  // namespace lockstep

#endif  // WORKER_COMM_COLLECTIVES_H_
