#include "cli/yaml_to_proto.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/nearest_name.h"
#include "cli/numbers.h"
#include "common/printable.h"

namespace lockstep::cli {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::EnumValueDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::OneofDescriptor;

// Beyond that many faults the file is something else.
constexpr size_t kFaultsMax = 50;

constexpr const char* kPathFields[] = {
    "lockstep.v1.DataSpec.files",
    "lockstep.v1.DataSpec.mask_files",
    "lockstep.v1.ModelSpec.hugging_face_folder",
    "lockstep.v1.CheckpointSource.folder",
    "lockstep.v1.JobSpec.output_directory",
};

// In quotes, or marked as a string.
bool IsQuoted(const YAML::Node& node) {
  return node.Tag() == "!" || absl::EndsWith(node.Tag(), ":str");
}

// Tags of other programs would be ignored, and with them what they mean.
bool HasKnownTag(const YAML::Node& node) {
  absl::string_view tag = node.Tag();
  if (tag.empty() || tag == "?" || tag == "!") return true;
  if (!absl::ConsumePrefix(&tag, "tag:yaml.org,2002:")) return false;
  for (const char* known :
       {"str", "int", "float", "bool", "null", "seq", "map"}) {
    if (tag == known) return true;
  }
  return false;
}

std::string Describe(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a section of fields";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar:
      return absl::StrCat(IsQuoted(node) ? "text " : "", Quoted(node.Scalar()));
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      break;
  }
  return "nothing";
}

std::string ExpectedGot(absl::string_view expected, const YAML::Node& node,
                        absl::string_view hint = "") {
  return absl::StrCat("expected ", expected, ", got ", Describe(node), hint);
}

std::vector<std::string> FieldNames(const Descriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) {
    names.push_back(type->field(i)->name());
  }
  return names;
}

// Without the value that only stands for an absent field.
std::vector<std::string> ValueNames(const EnumDescriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() != 0) names.push_back(type->value(i)->name());
  }
  return names;
}

// Every path at which the tree under `type` has a field called `name`.
void FindElsewhere(const Descriptor* type, const std::string& path,
                   const std::string& name, std::vector<std::string>* found) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const std::string field_path = JoinPath(path, field->name());
    if (field->name() == name || field->json_name() == name) {
      found->push_back(field_path);
    }
    if (field->message_type() != nullptr) {
      FindElsewhere(field->message_type(), field_path, name, found);
    }
  }
}

void AllNames(const Descriptor* type, std::vector<std::string>* names) {
  for (int i = 0; i < type->field_count(); ++i) {
    names->push_back(type->field(i)->name());
    if (type->field(i)->message_type() != nullptr) {
      AllNames(type->field(i)->message_type(), names);
    }
  }
}

std::string Line(const YAML::Mark& mark) {
  return absl::StrCat("line ", mark.line + 1);
}

}  // namespace

std::string JoinPath(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

bool YamlToProto::IsPathField(const FieldDescriptor* field) {
  return std::find(std::begin(kPathFields), std::end(kPathFields),
                   field->full_name()) != std::end(kPathFields);
}

const FieldDescriptor* YamlToProto::Find(const Descriptor* type,
                                         const std::string& name) {
  if (const auto* field = type->FindFieldByName(name)) return field;
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->json_name() == name) return type->field(i);
  }
  return nullptr;
}

std::string YamlToProto::UnknownField(const Descriptor* type,
                                      const std::string& path,
                                      const std::string& name) const {
  const auto did_you_mean = [](const std::vector<std::string>& names) {
    return absl::StrCat("no such field; did you mean ", JoinWithOr(names), "?");
  };
  const auto belongs = [&](const std::string& word) -> std::string {
    std::vector<std::string> elsewhere;
    FindElsewhere(options_.root, "", word, &elsewhere);
    if (elsewhere.empty()) return "";
    const size_t dot = elsewhere[0].rfind('.');
    if (dot == std::string::npos) {
      return absl::StrCat("no such field here; did you mean ", elsewhere[0],
                          " at the top of the file?");
    }
    return absl::StrCat("no such field here; did you mean ",
                        elsewhere[0].substr(dot + 1), " under ",
                        elsewhere[0].substr(0, dot), ":?");
  };
  if (const std::string text = belongs(name); !text.empty()) return text;
  const auto siblings = NearestNames(name, FieldNames(type));
  if (!siblings.empty()) return did_you_mean(siblings);
  std::vector<std::string> all;
  AllNames(options_.root, &all);
  // One that is near enough to be the same word, with a slip.
  for (const std::string& near : NearestNames(name, all)) {
    if (EditDistance(name, near) <= 2) return belongs(near);
  }
  return absl::StrCat("no such field; ", path.empty() ? "a job" : path, " has ",
                      absl::StrJoin(FieldNames(type), ", "));
}

void YamlToProto::AddFault(const YAML::Mark& mark, const std::string& path,
                           const std::string& what) {
  if (faults_.size() > kFaultsMax) return;
  if (faults_.size() == kFaultsMax) {
    faults_.push_back("and more");
    return;
  }
  faults_.push_back(absl::StrCat(options_.place(mark), ": ", path,
                                 path.empty() ? "" : ": ", what));
}

bool YamlToProto::RefuseTag(const YAML::Node& node, const YAML::Mark& mark,
                            const std::string& path) {
  if (HasKnownTag(node)) return false;
  AddFault(mark, path,
           absl::StrCat("expected a value without a tag, got the tag ",
                        Quoted(node.Tag()), ": leave it out"));
  return true;
}

void YamlToProto::Message(const YAML::Node& node, const YAML::Mark& mark,
                          const std::string& path,
                          google::protobuf::Message* message) {
  const Descriptor* type = message->GetDescriptor();
  // A section whose lines are all comments is a section without fields.
  if (node.IsNull()) return;
  if (!node.IsMap()) {
    AddFault(mark, path,
             ExpectedGot(absl::StrCat("a section with fields such as ",
                                      type->field(0)->name(), ":"),
                         node));
    return;
  }
  std::map<const FieldDescriptor*, YAML::Mark> seen;
  for (const auto& entry : node) {
    const YAML::Mark at = entry.first.Mark();
    if (!entry.first.IsScalar()) {
      AddFault(
          at, path,
          ExpectedGot("the name of a field before the colon", entry.first));
      continue;
    }
    const std::string& name = entry.first.Scalar();
    const FieldDescriptor* field = Find(type, name);
    if (field == nullptr) {
      const std::string shown =
          name.size() <= 100 && IsPrintableUtf8(name) ? name : Quoted(name);
      AddFault(at, JoinPath(path, shown), UnknownField(type, path, name));
      continue;
    }
    const std::string field_path = JoinPath(path, field->name());
    if (const auto twice = seen.find(field); twice != seen.end()) {
      AddFault(at, field_path,
               absl::StrCat("is already on ", Line(twice->second)));
      continue;
    }
    if (const OneofDescriptor* oneof = field->real_containing_oneof()) {
      const auto other =
          std::find_if(seen.begin(), seen.end(), [&](const auto& known) {
            return known.first->real_containing_oneof() == oneof;
          });
      if (other != seen.end()) {
        AddFault(at, field_path,
                 absl::StrCat("cannot be together with ", other->first->name(),
                              " on ", Line(other->second), ": keep one"));
        continue;
      }
    }
    seen.emplace(field, at);
    Field(entry.second, at, field_path, field, message);
  }
}

void YamlToProto::Field(const YAML::Node& node, const YAML::Mark& mark,
                        const std::string& path, const FieldDescriptor* field,
                        google::protobuf::Message* message) {
  places_[path] = options_.place(mark);
  if (RefuseTag(node, mark, path)) return;
  // An empty value has no place of its own; its name has.
  const YAML::Mark at =
      node.IsNull() || node.Mark().is_null() ? mark : node.Mark();
  if (!field->is_repeated()) {
    if (field->message_type() != nullptr) {
      Message(node, at, path,
              message->GetReflection()->MutableMessage(message, field));
    } else {
      Scalar(node, at, path, field, message);
    }
    return;
  }
  if (!node.IsSequence()) {
    AddFault(at, path,
             ExpectedGot("a list", node,
                         node.IsScalar()
                             ? absl::StrCat(": write [", node.Scalar(), "]")
                             : ""));
    return;
  }
  int index = 0;
  for (const YAML::Node& element : node) {
    const std::string element_path = absl::StrCat(path, "[", index++, "]");
    const YAML::Mark element_at =
        element.IsNull() || element.Mark().is_null() ? at : element.Mark();
    places_[element_path] = options_.place(element_at);
    if (RefuseTag(element, element_at, element_path)) continue;
    if (field->message_type() != nullptr) {
      Message(element, element_at, element_path,
              message->GetReflection()->AddMessage(message, field));
    } else {
      Scalar(element, element_at, element_path, field, message);
    }
  }
}

void YamlToProto::Scalar(const YAML::Node& node, const YAML::Mark& mark,
                         const std::string& path, const FieldDescriptor* field,
                         google::protobuf::Message* message) {
  const auto* reflection = message->GetReflection();
  const bool repeated = field->is_repeated();
  const auto fault = [&](const std::string& what) {
    AddFault(mark, path, what);
  };
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  const bool plain = node.IsScalar() && !IsQuoted(node);
  const auto integer = [&](int64_t min, int64_t max,
                           bool quotes) -> std::optional<int64_t> {
    if (!plain && !(quotes && node.IsScalar())) {
      fault(ExpectedGot("a whole number", node,
                        node.IsScalar() && IsNumber(text)
                            ? ": write it without quotes"
                            : ""));
      return std::nullopt;
    }
    const auto value = ParseInteger(text, min, max);
    if (value.ok()) return *value;
    fault(std::string(value.status().message()));
    return std::nullopt;
  };

  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto value = integer(std::numeric_limits<int32_t>::min(),
                                 std::numeric_limits<int32_t>::max(), false);
      if (!value) return;
      const auto v = static_cast<int32_t>(*value);
      repeated ? reflection->AddInt32(message, field, v)
               : reflection->SetInt32(message, field, v);
      return;
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const auto value = integer(std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max(), true);
      if (!value) return;
      repeated ? reflection->AddInt64(message, field, *value)
               : reflection->SetInt64(message, field, *value);
      return;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      if (!plain) {
        return fault(ExpectedGot("a number", node,
                                 node.IsScalar() && IsNumber(text)
                                     ? ": write it without quotes"
                                     : ""));
      }
      const auto value = ParseDouble(text);
      if (!value.ok()) return fault(std::string(value.status().message()));
      repeated ? reflection->AddDouble(message, field, *value)
               : reflection->SetDouble(message, field, *value);
      return;
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      if (!plain || (text != "true" && text != "false")) {
        return fault(ExpectedGot("true or false", node));
      }
      repeated ? reflection->AddBool(message, field, text == "true")
               : reflection->SetBool(message, field, text == "true");
      return;
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* value =
          node.IsScalar() ? field->enum_type()->FindValueByName(text) : nullptr;
      if (value == nullptr) {
        const auto names = ValueNames(field->enum_type());
        const auto near = NearestNames(text, names);
        return fault(ExpectedGot(
            JoinWithOr(names), node,
            near.empty()
                ? ""
                : absl::StrCat(": did you mean ", JoinWithOr(near), "?")));
      }
      repeated ? reflection->AddEnum(message, field, value)
               : reflection->SetEnum(message, field, value);
      return;
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      if (!node.IsScalar()) return fault(ExpectedGot("text", node));
      if (plain && (IsNumber(text) || text == "true" || text == "false")) {
        return fault(ExpectedGot("text", node, ": put it in quotes"));
      }
      std::string value = text;
      if (IsPathField(field)) {
        auto path_or = options_.path(text);
        if (!path_or.ok()) {
          return fault(std::string(path_or.status().message()));
        }
        value = *std::move(path_or);
      }
      repeated ? reflection->AddString(message, field, value)
               : reflection->SetString(message, field, value);
      return;
    }
    default:
      // No other kind of field is in a job.
      fault(absl::StrCat("fields of type ", field->cpp_type_name(),
                         " cannot be written in a file"));
  }
}

}  // namespace lockstep::cli
