// What a job file leaves to the folder of its model.
#ifndef CLI_MODEL_SIZES_H_
#define CLI_MODEL_SIZES_H_

#include "absl/status/status.h"
#include "lockstep/v1/job.pb.h"

namespace lockstep::cli {

// Fills in `model.sizes` from the folder that `spec` names, if it names one.
//
// Errors, after which nothing is filled in:
//   InvalidArgument: the folder's model has other sizes than `spec` says, or is
//     for shorter sequences.
//   Unavailable: the folder cannot be read here, or has no model in it.
absl::Status ReadModelSizes(v1::JobSpec* spec);

}  // namespace lockstep::cli

#endif  // CLI_MODEL_SIZES_H_
