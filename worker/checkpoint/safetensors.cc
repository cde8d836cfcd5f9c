#include "worker/checkpoint/safetensors.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status.h"
#include "worker/checkpoint/strict_json.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

// An array of whole numbers from 0 to 2^63 - 1.
std::optional<std::vector<int64_t>> Sizes(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const Json& item : json) {
    if (!item.is_number_unsigned()) return std::nullopt;
    const auto value = item.get<uint64_t>();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return std::nullopt;
    }
    sizes.push_back(static_cast<int64_t>(value));
  }
  return sizes;
}

absl::Status CheckMetadata(const Json& json) {
  if (!json.is_object()) {
    return Invalid("__metadata__: expected an object of strings");
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return Invalid(absl::StrCat("__metadata__: \"",
                                  absl::Utf8SafeCEscape(key),
                                  "\": expected a string"));
    }
  }
  return absl::OkStatus();
}

// `data_offset`: where the data begins in the file.
absl::StatusOr<TensorInfo> ParseTensor(const std::string& name,
                                       const Json& json, int64_t data_offset,
                                       int64_t file_size) {
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") ||
      !json.contains("shape") || !json.contains("data_offsets")) {
    return Invalid(
        "expected an object of dtype, shape and data_offsets, and no more");
  }
  TensorInfo info;
  info.name = name;
  const Json& dtype_json = json["dtype"];
  const std::optional<Dtype> dtype =
      dtype_json.is_string() ? DtypeFromName(dtype_json.get<std::string>())
                             : std::nullopt;
  if (!dtype) {
    return Invalid(
        absl::StrCat("dtype: expected a known type such as \"F32\", "
                     "got ",
                     dtype_json.dump()));
  }
  info.dtype = *dtype;

  std::optional<std::vector<int64_t>> shape = Sizes(json["shape"]);
  if (!shape) {
    return Invalid(absl::StrCat(
        "shape: expected an array of whole numbers from 0 to 2^63 - 1, got ",
        json["shape"].dump()));
  }
  info.shape = *std::move(shape);

  const std::optional<std::vector<int64_t>> offsets =
      Sizes(json["data_offsets"]);
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    return Invalid(absl::StrCat(
        "data_offsets: expected [begin, end] with begin <= end, got ",
        json["data_offsets"].dump()));
  }
  const auto [begin, end] = std::tie((*offsets)[0], (*offsets)[1]);
  ASSIGN_OR_RETURN(info.byte_count, TensorBytes(info.dtype, info.shape));
  if (end - begin != info.byte_count) {
    return Invalid(absl::StrCat("data_offsets: ", DtypeName(info.dtype),
                                ShapeText(info.shape), " takes ",
                                info.byte_count, " bytes, got ", end - begin));
  }
  if (end > file_size - data_offset) {
    return Invalid(absl::StrCat(
        "data_offsets: ends at byte ", end, " of the data; the file has only ",
        file_size - data_offset, " bytes of data: it is truncated"));
  }
  info.file_offset = data_offset + begin;
  return info;
}

// The ranges, ordered, must be the data without a hole or an overlap.
absl::Status CheckCoverage(const std::vector<TensorInfo>& tensors,
                           int64_t data_offset, int64_t file_size) {
  int64_t next = data_offset;
  for (const TensorInfo& t : tensors) {
    if (t.file_offset != next) {
      return Invalid(absl::StrCat(
          "tensor \"", absl::Utf8SafeCEscape(t.name),
          "\": data begins at byte ", t.file_offset, "; expected ", next,
          ", where the one before it ends: ",
          t.file_offset > next ? "there is a hole" : "they overlap"));
    }
    next += t.byte_count;
  }
  if (next != file_size) {
    return Invalid(absl::StrCat("has ", file_size, " bytes; expected ", next,
                                ", where the last tensor ends"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorInfo>> ParseHeader(
    const RandomAccessFile& file) {
  const int64_t size = file.size();
  if (size < 8) {
    return Invalid(absl::StrCat(
        "has ", size, " bytes; expected at least 8, the header's length"));
  }
  unsigned char prefix[8];
  RETURN_IF_ERROR(file.ReadAt(0, 8, prefix));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | prefix[i];
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return Invalid(absl::StrCat("byte 0: header length ", header_bytes,
                                "; expected at most ",
                                kSafetensorsHeaderBytesMax));
  }
  const auto length = static_cast<int64_t>(header_bytes);
  if (length > size - 8) {
    return Invalid(absl::StrCat("byte 0: header length ", length,
                                "; the file has only ", size - 8,
                                " bytes after it: it is truncated"));
  }
  std::string text(static_cast<size_t>(length), '\0');
  RETURN_IF_ERROR(file.ReadAt(8, length, text.data()));
  if (text.empty() || text[0] != '{') {
    return Invalid("byte 8: expected '{', the header's first byte");
  }
  ASSIGN_OR_RETURN(const Json header, ParseStrictJson(text, 8));

  const int64_t data_offset = 8 + length;
  std::vector<TensorInfo> tensors;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) {
      RETURN_IF_ERROR(CheckMetadata(json));
      continue;
    }
    absl::StatusOr<TensorInfo> info =
        ParseTensor(name, json, data_offset, size);
    if (!info.ok()) {
      return Annotate(
          info.status(),
          absl::StrCat("tensor \"", absl::Utf8SafeCEscape(name), "\""));
    }
    tensors.push_back(*std::move(info));
  }
  // Empty tensors stand before the one whose data begins where they do.
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::tie(a.file_offset, a.byte_count, a.name) <
                     std::tie(b.file_offset, b.byte_count, b.name);
            });
  RETURN_IF_ERROR(CheckCoverage(tensors, data_offset, size));
  return tensors;
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> TensorBytes(Dtype dtype,
                                    const std::vector<int64_t>& shape) {
  int64_t bits = DtypeBits(dtype);
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(bits, dim, &bits)) {
      return Invalid(absl::StrCat("shape: ", DtypeName(dtype), ShapeText(shape),
                                  " takes 2^63 bits or more"));
    }
  }
  if (bits % 8 != 0) {
    return Invalid(absl::StrCat("shape: ", DtypeName(dtype), ShapeText(shape),
                                " takes ", bits,
                                " bits; expected a multiple of 8"));
  }
  return bits / 8;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(RandomAccessFile file, RandomAccessFile::Open(path));
  absl::StatusOr<std::vector<TensorInfo>> tensors = ParseHeader(file);
  if (!tensors.ok()) {
    // A failed read names the file by itself.
    return absl::IsInvalidArgument(tensors.status())
               ? Annotate(tensors.status(), path)
               : tensors.status();
  }
  return SafetensorsFile(std::move(file), *std::move(tensors));
}

absl::Status SafetensorsFile::Read(const TensorInfo& tensor, int64_t offset,
                                   int64_t byte_count, void* out) const {
  LS_CHECK(0 <= offset && 0 <= byte_count &&
           byte_count <= tensor.byte_count - offset);
  return file_.ReadAt(tensor.file_offset + offset, byte_count, out);
}

}  // namespace lockstep
