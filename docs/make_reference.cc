// Writes reference pages, in Markdown, from the comments of the API's protos.
//
//   make_reference job-file|api DESCRIPTOR_SET > PAGE
//
// DESCRIPTOR_SET is what protoc writes with --descriptor_set_out,
// --include_imports and --include_source_info.

#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"

namespace lockstep::docs {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::MethodDescriptor;
using ::google::protobuf::ServiceDescriptor;
using ::google::protobuf::SourceLocation;

// The comment before a declaration, without the blank that follows "//".
template <typename D>
std::string Comment(const D* declaration) {
  SourceLocation location;
  if (!declaration->GetSourceLocation(&location)) return "";
  std::string text;
  for (absl::string_view line :
       absl::StrSplit(location.leading_comments, '\n')) {
    absl::ConsumePrefix(&line, " ");
    absl::StrAppend(&text, line, "\n");
  }
  while (absl::EndsWith(text, "\n")) text.pop_back();
  return text;
}

template <typename D>
void PrintComment(const D* declaration, std::ostream& out) {
  const std::string text = Comment(declaration);
  if (text.empty()) return;
  for (absl::string_view paragraph : absl::StrSplit(text, "\n\n")) {
    // What is indented is a picture.
    const bool picture = absl::StartsWith(paragraph, "  ");
    out << (picture ? "```text\n" : "") << paragraph
        << (picture ? "\n```\n\n" : "\n\n");
  }
}

// As people write it in a job file.
std::string FileType(const FieldDescriptor* field) {
  std::string type;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      type = "whole number";
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      type = "number";
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      type = "true or false";
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      type = "text";
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      type = "one of the words below";
      break;
    default:
      type = "section";
      break;
  }
  return field->is_repeated() ? absl::StrCat("list of ", type) : type;
}

void PrintEnumValues(const EnumDescriptor* type, bool with_unset,
                     std::ostream& out) {
  for (int i = 0; i < type->value_count(); ++i) {
    const auto* value = type->value(i);
    if (value->number() == 0 && !with_unset) continue;
    std::string comment = Comment(value);
    for (size_t at = 0; (at = comment.find('\n', at)) != std::string::npos;) {
      comment.replace(at, 1, "\n  ");
      at += 3;
    }
    out << "- `" << value->name() << "`: " << comment << "\n";
  }
  out << "\n";
}

// --- the job file

void PrintSection(const Descriptor* type, const std::string& path,
                  std::ostream& out) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const std::string field_path =
        path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    out << (path.empty() ? "## `" : "### `") << field_path << "`\n\n"
        << "*" << FileType(field);
    if (const auto* oneof = field->real_containing_oneof()) {
      out << "; of ";
      for (int j = 0; j < oneof->field_count(); ++j) {
        out << (j == 0 ? "" : ", ") << "`" << oneof->field(j)->name() << "`";
      }
      out << " exactly one";
    }
    out << "*\n\n";
    PrintComment(field, out);
    if (field->enum_type() != nullptr) {
      PrintEnumValues(field->enum_type(), /*with_unset=*/false, out);
    }
    if (field->message_type() != nullptr) {
      PrintComment(field->message_type(), out);
      PrintSection(field->message_type(), field_path, out);
    }
  }
}

// --- the API

std::string TypeName(const FieldDescriptor* field) {
  std::string name;
  if (field->message_type() != nullptr) {
    name = field->message_type()->full_name();
  } else if (field->enum_type() != nullptr) {
    name = field->enum_type()->full_name();
  } else {
    name = field->type_name();
  }
  absl::string_view shown = name;
  absl::ConsumePrefix(&shown, "lockstep.v1.");
  return absl::StrCat(field->is_repeated()            ? "repeated "
                      : field->has_optional_keyword() ? "optional "
                                                      : "",
                      shown);
}

// Collects `type` and the messages of the API that it is made of, but for what
// the job file's page describes.
void Reach(const Descriptor* type, std::vector<const Descriptor*>* order,
           std::set<const Descriptor*>* seen) {
  if (type->file()->package() != "lockstep.v1" ||
      type->full_name() == "lockstep.v1.JobSpec" ||
      !seen->insert(type).second) {
    return;
  }
  order->push_back(type);
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->message_type() != nullptr) {
      Reach(type->field(i)->message_type(), order, seen);
    }
  }
}

void PrintMessage(const Descriptor* type, std::ostream& out) {
  out << "### " << type->name() << "\n\n";
  PrintComment(type, out);
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    out << "**`" << field->name() << "`** *" << TypeName(field) << "*\n\n";
    PrintComment(field, out);
  }
  for (int i = 0; i < type->enum_type_count(); ++i) {
    out << "#### " << type->name() << "." << type->enum_type(i)->name()
        << "\n\n";
    PrintComment(type->enum_type(i), out);
    PrintEnumValues(type->enum_type(i), /*with_unset=*/true, out);
  }
}

void PrintService(const ServiceDescriptor* service, std::ostream& out) {
  out << "## " << service->full_name() << "\n\n";
  PrintComment(service, out);
  for (int i = 0; i < service->method_count(); ++i) {
    const MethodDescriptor* method = service->method(i);
    out << "### " << method->name() << "\n\n"
        << "`" << method->name() << "(" << method->input_type()->name()
        << ") returns (" << (method->server_streaming() ? "stream " : "")
        << method->output_type()->name() << ")`\n\n";
    PrintComment(method, out);
  }
}

void PrintApi(const DescriptorPool& pool, std::ostream& out) {
  std::vector<const Descriptor*> order;
  std::set<const Descriptor*> seen;
  for (const char* name :
       {"lockstep.v1.JobService", "lockstep.v1.MonitorService"}) {
    const ServiceDescriptor* service = pool.FindServiceByName(name);
    PrintService(service, out);
    for (int i = 0; i < service->method_count(); ++i) {
      Reach(service->method(i)->input_type(), &order, &seen);
      Reach(service->method(i)->output_type(), &order, &seen);
    }
  }
  out << "## Messages\n\n";
  for (const Descriptor* type : order) PrintMessage(type, out);
}

int Run(const std::string& page, const std::string& path) {
  google::protobuf::FileDescriptorSet files;
  std::ifstream in(path, std::ios::binary);
  if (!in || !files.ParseFromIstream(&in)) {
    std::cerr << "make_reference: " << path
              << ": expected a descriptor set of protoc\n";
    return 1;
  }
  DescriptorPool pool;
  for (const auto& file : files.file()) {
    if (pool.BuildFile(file) == nullptr) {
      std::cerr << "make_reference: " << path << ": cannot use " << file.name()
                << "\n";
      return 1;
    }
  }
  if (page == "job-file") {
    PrintSection(pool.FindMessageTypeByName("lockstep.v1.JobSpec"), "",
                 std::cout);
  } else if (page == "api") {
    PrintApi(pool, std::cout);
  } else {
    std::cerr << "make_reference: expected job-file or api, got " << page
              << "\n";
    return 2;
  }
  std::cout << std::flush;
  return std::cout ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::docs

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: make_reference job-file|api DESCRIPTOR_SET\n";
    return 2;
  }
  return lockstep::docs::Run(argv[1], argv[2]);
}
