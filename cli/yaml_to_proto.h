// YAML nodes to a protocol buffer message, by its descriptor.
#ifndef CLI_YAML_TO_PROTO_H_
#define CLI_YAML_TO_PROTO_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "yaml-cpp/yaml.h"

namespace lockstep::cli {

// Fills messages, and collects what is wrong instead of stopping at it.
class YamlToProto {
 public:
  struct Options {
    // Names the place of a mark in messages: "job.yaml:3:5".
    std::function<std::string(const YAML::Mark&)> place;
    // Turns the value of a path field (IsPathField) into what is stored; an
    // error's message is the rest of the fault.
    std::function<absl::StatusOr<std::string>(const std::string&)> path;
    // The message at the top, where misplaced names are looked for.
    const google::protobuf::Descriptor* root = nullptr;
  };

  explicit YamlToProto(Options options) : options_(std::move(options)) {}

  // Merges the map `node` into `message`, which stands at `path` ("" for the
  // top).  `mark` is where it was written, for nodes that do not know.
  void Message(const YAML::Node& node, const YAML::Mark& mark,
               const std::string& path, google::protobuf::Message* message);

  // Whether a value has a tag that says more than its kind, which is a fault.
  bool RefuseTag(const YAML::Node& node, const YAML::Mark& mark,
                 const std::string& path);

  // Sets one field, whose own path is `path`.
  void Field(const YAML::Node& node, const YAML::Mark& mark,
             const std::string& path,
             const google::protobuf::FieldDescriptor* field,
             google::protobuf::Message* message);

  // The field that `name` means in `type`: as in the proto, or in
  // lowerCamelCase.  Null if there is none.
  static const google::protobuf::FieldDescriptor* Find(
      const google::protobuf::Descriptor* type, const std::string& name);

  // What is to be said of a name that `type`, which stands at `path`, does not
  // have: "no such field; did you mean ...?".
  std::string UnknownField(const google::protobuf::Descriptor* type,
                           const std::string& path,
                           const std::string& name) const;

  // Whether the field holds a path of the file system.
  static bool IsPathField(const google::protobuf::FieldDescriptor* field);

  void AddFault(const YAML::Mark& mark, const std::string& path,
                const std::string& what);

  // One line each, in the order they were met.
  const std::vector<std::string>& faults() const { return faults_; }

  // Path of a field, or an element of a list, to where it was written.
  const std::map<std::string, std::string>& places() const { return places_; }

 private:
  void Scalar(const YAML::Node& node, const YAML::Mark& mark,
              const std::string& path,
              const google::protobuf::FieldDescriptor* field,
              google::protobuf::Message* message);

  Options options_;
  std::vector<std::string> faults_;
  std::map<std::string, std::string> places_;
};

// "path.name", or "name" at the top.
std::string JoinPath(const std::string& path, const std::string& name);

}  // namespace lockstep::cli

#endif  // CLI_YAML_TO_PROTO_H_
