// Job files: a JobSpec in YAML, or in JSON, which YAML includes.
//
// The form is the JSON form of protocol buffers: sections for messages, field
// names as in lockstep/v1/job.proto (or in lowerCamelCase), enum values by
// name, 64-bit integers also as strings.  Stricter than that form where
// leniency hides mistakes: a name may appear once, text that looks like a
// number needs quotes, enum values are no numbers, and nothing is not a value.
//
// Paths that do not start with "/" (data.files, model.hugging_face_folder,
// output_directory) are taken relative to the folder of the file, "." and ".."
// in them textually, and stand as absolute paths in the spec.
#ifndef CLI_JOB_FILE_H_
#define CLI_JOB_FILE_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lockstep/v1/job.pb.h"

namespace lockstep::cli {

// A spec, and where each of its fields was written.
class JobFile {
 public:
  // Larger files are refused: something else was meant.
  static constexpr size_t kBytesMax = 1 << 20;

  // Reads the file at `path`; what is relative in `path` itself is relative to
  // the working directory.
  //
  // Errors:
  //   InvalidArgument: it cannot be read, or as Parse.
  static absl::StatusOr<JobFile> Read(const std::string& path);

  // `name` stands for the file in messages; `folder` is what its relative paths
  // are relative to, absolute.
  //
  // Errors:
  //   InvalidArgument: every fault on a line of its own,
  //     "name:line:column: path.to.field: what is wrong".
  static absl::StatusOr<JobFile> Parse(absl::string_view text,
                                       const std::string& name,
                                       const std::string& folder);

  // Sets one field from `assignment`, "path.to.field=value", over what the file
  // says.  The value is YAML, but for a text field, which takes all of it as it
  // stands.  `folder` as in Parse.
  //
  // Errors:
  //   InvalidArgument: as Parse, with the assignment as the place; nothing was
  //     set.
  absl::Status Set(absl::string_view assignment, const std::string& folder);

  // Names the place of each fault of a message of lines "path.to.field: ...",
  // as ResolveJobSpec makes them.  Other lines stay as they are.
  absl::Status Locate(const absl::Status& status) const;

  const v1::JobSpec& spec() const { return spec_; }
  v1::JobSpec& spec() { return spec_; }

 private:
  JobFile() = default;

  std::string name_;
  v1::JobSpec spec_;
  // "data.files[0]" -> "job.yaml:12:7".
  std::map<std::string, std::string> places_;
};

}  // namespace lockstep::cli

#endif  // CLI_JOB_FILE_H_
