#include "cli/job_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/yaml_to_proto.h"
#include "common/printable.h"
#include "common/status.h"
#include "yaml-cpp/yaml.h"

namespace lockstep::cli {
namespace {

std::string At(const std::string& name, const YAML::Mark& mark) {
  if (mark.is_null()) return name;
  return absl::StrCat(name, ":", mark.line + 1, ":", mark.column + 1);
}

absl::StatusOr<std::string> Absolute(const std::string& path,
                                     const std::string& folder) {
  if (path.empty() || path[0] == '/') return path;
  if (path[0] == '~') {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a path written in full (\"~\" is not replaced "
                     "here; \"./~\" means a folder of that name), got ",
                     Quoted(path)));
  }
  return (std::filesystem::path(folder) / path).lexically_normal().string();
}

YamlToProto MakeReader(std::function<std::string(const YAML::Mark&)> place,
                       const std::string& folder) {
  return YamlToProto({
      .place = std::move(place),
      .path =
          [folder](const std::string& path) { return Absolute(path, folder); },
      .root = v1::JobSpec::descriptor(),
  });
}

absl::Status ToStatus(const YamlToProto& reader) {
  if (reader.faults().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(reader.faults(), "\n"));
}

// What yaml-cpp would report as something else, or not at all.
absl::Status CheckText(absl::string_view text, const std::string& name) {
  if (text.size() > JobFile::kBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected a job file of at most ",
                     JobFile::kBytesMax, " bytes, got ", text.size()));
  }
  size_t bad = FindInvalidUtf8(text).value_or(text.size());
  bad = std::min(bad, text.find('\0'));
  if (bad < text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": expected a job file, which is text in UTF-8, got byte ",
        static_cast<int>(static_cast<unsigned char>(text[bad])), " at offset ",
        bad));
  }
  // In braces, as in JSON, tabs are blanks.
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{")) {
    return absl::OkStatus();
  }
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    const size_t first = line.find_first_not_of(" \t\r");
    const size_t tab = line.find('\t');
    if (first != absl::string_view::npos && tab < first && line[first] != '#') {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", line_number, ":", tab + 1,
                       ": expected indentation by spaces, got a tab"));
    }
  }
  return absl::OkStatus();
}

// The one document of `text`; null if there is nothing in it.
absl::StatusOr<YAML::Node> Load(absl::string_view text,
                                const std::string& name) {
  RETURN_IF_ERROR(CheckText(text, name));
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(std::string(text));
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(
        At(name, e.mark), ": not YAML: ", e.msg.empty() ? e.what() : e.msg));
  }
  if (documents.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(At(name, documents[1].Mark()),
                     ": expected the end of the file: a job file holds one "
                     "job"));
  }
  return documents.empty() ? YAML::Node() : documents[0];
}

}  // namespace

absl::StatusOr<JobFile> JobFile::Read(const std::string& path) {
  const auto fail = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read job file ", path, ": ", what));
  };
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return fail(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return fail("it is a folder");
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(std::strerror(errno));
  // One byte more than is allowed shows that there is more.
  std::string text(kBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return fail(std::strerror(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return fail(error.message());
  return Parse(text, path, absolute.lexically_normal().parent_path().string());
}

absl::StatusOr<JobFile> JobFile::Parse(absl::string_view text,
                                       const std::string& name,
                                       const std::string& folder) {
  ASSIGN_OR_RETURN(const YAML::Node node, Load(text, name));
  if (node.IsNull()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name,
                     ": expected a job (model, data, batch, schedule, "
                     "output_directory), got an empty file"));
  }
  JobFile file;
  file.name_ = name;
  YamlToProto reader = MakeReader(
      [&](const YAML::Mark& mark) { return At(name, mark); }, folder);
  reader.Message(node, node.Mark(), "", &file.spec_);
  RETURN_IF_ERROR(ToStatus(reader));
  file.places_ = reader.places();
  return file;
}

absl::Status JobFile::Set(absl::string_view assignment,
                          const std::string& folder) {
  const std::string place = absl::StrCat("--set ", assignment);
  const auto fail = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
  };
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return fail(
        "expected path.to.field=value, such as batch.global_batch_size=32");
  }
  const std::string value(assignment.substr(equals + 1));
  YamlToProto reader =
      MakeReader([&](const YAML::Mark&) { return place; }, folder);

  v1::JobSpec changed = spec_;
  google::protobuf::Message* message = &changed;
  const google::protobuf::FieldDescriptor* field = nullptr;
  std::string path;
  for (absl::string_view part :
       absl::StrSplit(assignment.substr(0, equals), '.')) {
    if (field != nullptr) {
      if (field->message_type() == nullptr || field->is_repeated()) {
        return fail(absl::StrCat(path, " has no fields of its own"));
      }
      message = message->GetReflection()->MutableMessage(message, field);
    }
    const std::string name(part);
    field = YamlToProto::Find(message->GetDescriptor(), name);
    if (field == nullptr) {
      return fail(absl::StrCat(
          JoinPath(path, name), ": ",
          reader.UnknownField(message->GetDescriptor(), path, name)));
    }
    path = JoinPath(path, field->name());
  }
  message->GetReflection()->ClearField(message, field);
  YAML::Node node;
  // Text is taken as it stands, but for what is no value in a job file either.
  if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING &&
      !field->is_repeated() && value != "null") {
    if (FindInvalidUtf8(value)) return fail("expected text in UTF-8");
    node = YAML::Node(value);
    node.SetTag("!");
  } else {
    ASSIGN_OR_RETURN(node, Load(value, place));
  }
  reader.Field(node, node.Mark(), path, field, message);
  RETURN_IF_ERROR(ToStatus(reader));
  spec_ = std::move(changed);
  for (const auto& [known, where] : reader.places()) places_[known] = where;
  return absl::OkStatus();
}

absl::Status JobFile::Locate(const absl::Status& status) const {
  if (status.ok()) return status;
  std::vector<std::string> lines =
      absl::StrSplit(std::string(status.message()), '\n');
  for (std::string& line : lines) {
    std::string path = line.substr(0, line.find(": "));
    // A line about something else does not start with a path.
    if (path.size() == line.size() ||
        path.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.[]") !=
            std::string::npos) {
      continue;
    }
    // What was left out is missed where its section is.
    std::string place = name_;
    for (;;) {
      if (const auto found = places_.find(path); found != places_.end()) {
        place = found->second;
        break;
      }
      const size_t cut = path.find_last_of(".[");
      if (cut == std::string::npos) break;
      path.resize(cut);
    }
    line = absl::StrCat(place, ": ", line);
  }
  return absl::Status(status.code(), absl::StrJoin(lines, "\n"));
}

}  // namespace lockstep::cli
