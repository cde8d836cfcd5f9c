// One SHA-256 of a saved state in logical space: what the tensors are, not how
// they are stored.
//
// Hashed are, one behind the other, all numbers as eight little-endian bytes:
//
//   "lockstep state 1\n", the number of tensors, and for each tensor in order
//   of its name's bytes:
//     length of the name, name, length of the type's name, type ("F32"),
//     number of dimensions, each dimension, number of bytes, the values
//     (row-major, little-endian)
//
// So states that differ in a name, a type, a shape or a bit have different
// hashes, and splitting a state into files, their order, header and metadata
// change nothing.
//
// Of a checkpoint the tensors are "parameter/NAME", "moment1/NAME" and
// "moment2/NAME", whole, and "state": bytes (U8) of the text that
// StateTextOf gives.  What says who wrote it, and how many ranks, is not in it.
#ifndef WORKER_CHECKPOINT_STATE_HASH_H_
#define WORKER_CHECKPOINT_STATE_HASH_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint.h"

namespace lockstep {

// Step, updates and units of a checkpoint, in one line.
std::string StateTextOf(const CheckpointInfo& info);

// 64 hexadecimal digits.  `path`: a folder or a .safetensors file, as
// TensorSet::Open takes it, or a checkpoint's folder; errors as there, or of
// reading.
absl::StatusOr<std::string> HashState(const std::string& path);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_STATE_HASH_H_
