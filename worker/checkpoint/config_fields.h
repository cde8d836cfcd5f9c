// Reading the fields of a config.json.  Every error is InvalidArgument and
// names the field, what it has and what is expected.
#ifndef WORKER_CHECKPOINT_CONFIG_FIELDS_H_
#define WORKER_CHECKPOINT_CONFIG_FIELDS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace lockstep {

absl::Status Unsupported(const char* field, const nlohmann::json& value,
                         const std::string& expected);

// The field's value; null when absent.
const nlohmann::json& Field(const nlohmann::json& json, const char* name);

// These leave `value` as it is when the field is absent or null.
//
// A count may go by another name as well, `alias` (null: none): GPT-2's fields
// have their own, and the ones common to all models.
absl::Status ReadCount(const nlohmann::json& json, const char* name,
                       const char* alias, int64_t& value);
absl::Status ReadNumber(const nlohmann::json& json, const char* name,
                        double& value);
absl::Status ReadBool(const nlohmann::json& json, const char* name,
                      bool& value);

// Refuses any value but `wanted`, which is also the default.
absl::Status MustBe(const nlohmann::json& json, const char* name, bool wanted);

// Refuses any value but null and {}.
absl::Status MustBeEmpty(const nlohmann::json& json, const char* name);

}  // namespace lockstep

#endif  // WORKER_CHECKPOINT_CONFIG_FIELDS_H_
