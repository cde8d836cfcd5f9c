// A job's specification as a job file.
#ifndef CLI_SPEC_YAML_H_
#define CLI_SPEC_YAML_H_

#include <string>

#include "lockstep/v1/job.pb.h"

namespace lockstep::cli {

// YAML that JobFile reads as `spec`, every field that is set on a line of its
// own, in the order of the proto.  Numbers read back to the last bit; what no
// job file can say (a number that is not finite, an enum value without a name)
// is written so that JobFile refuses it.
std::string SpecToYaml(const v1::JobSpec& spec);

}  // namespace lockstep::cli

#endif  // CLI_SPEC_YAML_H_
