#include "cli/spec_yaml.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/printable.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace lockstep::cli {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

std::string QuotedYaml(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\x%02x", c);
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

// The value, or its element `index` if that is not negative.
std::string Value(const Message& message, const FieldDescriptor* field,
                  int index) {
  const auto* r = message.GetReflection();
  const bool element = index >= 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(element ? r->GetRepeatedInt32(message, field, index)
                                  : r->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(element ? r->GetRepeatedInt64(message, field, index)
                                  : r->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return DoubleText(element ? r->GetRepeatedDouble(message, field, index)
                                : r->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (element ? r->GetRepeatedBool(message, field, index)
                      : r->GetBool(message, field))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = element
                             ? r->GetRepeatedEnumValue(message, field, index)
                             : r->GetEnumValue(message, field);
      const auto* value = field->enum_type()->FindValueByNumber(number);
      return value != nullptr ? value->name() : absl::StrCat(number);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return QuotedYaml(element ? r->GetRepeatedString(message, field, index)
                                : r->GetString(message, field));
    default:
      LS_CHECK(false && "no such field is in a job");
      return "";
  }
}

void Append(const Message& message, int indent, std::string* yaml) {
  const auto* reflection = message.GetReflection();
  const std::string margin(static_cast<size_t>(indent), ' ');
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    absl::StrAppend(yaml, margin, field->name(), ":");
    if (field->is_repeated()) {
      // No list of messages is in a job.
      absl::StrAppend(yaml, "\n");
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
        absl::StrAppend(yaml, margin, "  - ", Value(message, field, i), "\n");
      }
    } else if (field->message_type() != nullptr) {
      const Message& section = reflection->GetMessage(message, field);
      std::string lines;
      Append(section, indent + 2, &lines);
      absl::StrAppend(yaml, lines.empty() ? " {}\n" : "\n", lines);
    } else {
      absl::StrAppend(yaml, " ", Value(message, field, -1), "\n");
    }
  }
}

}  // namespace

std::string SpecToYaml(const v1::JobSpec& spec) {
  std::string yaml;
  Append(spec, 0, &yaml);
  return yaml.empty() ? "{}\n" : yaml;
}

}  // namespace lockstep::cli
