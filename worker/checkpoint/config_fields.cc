#include "worker/checkpoint/config_fields.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep {

using Json = nlohmann::json;

absl::Status Unsupported(const char* field, const Json& value,
                         const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", got ", value.dump()));
}

const Json& Field(const Json& json, const char* name) {
  static const Json* null = new Json(nullptr);
  const auto found = json.find(name);
  return found == json.end() ? *null : *found;
}

absl::Status ReadCount(const Json& json, const char* name, const char* alias,
                       int64_t& value) {
  const Json* field = &Field(json, name);
  if (alias != nullptr && !Field(json, alias).is_null()) {
    const Json& other = Field(json, alias);
    if (!field->is_null() && *field != other) {
      return Unsupported(
          alias, other,
          absl::StrCat("the same as ", name, ", ", field->dump()));
    }
    field = &other;
  }
  if (field->is_null()) return absl::OkStatus();
  if (!field->is_number_integer() ||
      (field->is_number_unsigned() && field->get<uint64_t>() > uint64_t{1}
                                                                   << 62)) {
    return Unsupported(name, *field, "a whole number");
  }
  value = field->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadNumber(const Json& json, const char* name, double& value) {
  const Json& field = Field(json, name);
  if (field.is_null()) return absl::OkStatus();
  if (!field.is_number()) return Unsupported(name, field, "a number");
  value = field.get<double>();
  return absl::OkStatus();
}

absl::Status ReadBool(const Json& json, const char* name, bool& value) {
  const Json& field = Field(json, name);
  if (field.is_null()) return absl::OkStatus();
  if (!field.is_boolean()) return Unsupported(name, field, "true or false");
  value = field.get<bool>();
  return absl::OkStatus();
}

absl::Status MustBe(const Json& json, const char* name, bool wanted) {
  bool value = wanted;
  RETURN_IF_ERROR(ReadBool(json, name, value));
  if (value == wanted) return absl::OkStatus();
  return Unsupported(name, value,
                     absl::StrCat(wanted ? "true" : "false",
                                  ", the only one that is supported"));
}

absl::Status MustBeEmpty(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (field.is_null() || (field.is_object() && field.empty())) {
    return absl::OkStatus();
  }
  return Unsupported(name, field, "none, which alone is supported");
}

}  // namespace lockstep
