#include "worker/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/safetensors.h"

namespace lockstep {

// Values go to files as they stand in memory.
static_assert(std::endian::native == std::endian::little);

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorSpec> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) {
              return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
            });
  // By hand: the order of the entries is part of the format's convention.
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::map<std::string, Place> places;
  int64_t begin = 0;
  for (const TensorSpec& t : tensors) {
    LS_CHECK(t.name != "__metadata__");
    ASSIGN_OR_RETURN(const int64_t byte_count, TensorBytes(t.dtype, t.shape));
    const int64_t end = begin + byte_count;
    absl::StrAppend(&header, ",", nlohmann::json(t.name).dump(),
                    ":{\"dtype\":\"", DtypeName(t.dtype), "\",\"shape\":[",
                    absl::StrJoin(t.shape, ","), "],\"data_offsets\":[", begin,
                    ",", end, "]}");
    LS_CHECK(places.emplace(t.name, Place{begin, end}).second);
    begin = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const auto header_bytes = static_cast<int64_t>(header.size());
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the header of ", tensors.size(), " tensors would have ",
        header_bytes, " bytes; readers take at most ",
        kSafetensorsHeaderBytesMax));
  }
  for (auto& [name, place] : places) {
    place.next += 8 + header_bytes;
    place.end += 8 + header_bytes;
  }

  ASSIGN_OR_RETURN(NewFile file,
                   NewFile::Create(path, 8 + header_bytes + begin));
  RETURN_IF_ERROR(file.WriteAt(0, &header_bytes, 8));
  RETURN_IF_ERROR(file.WriteAt(8, header.data(), header_bytes));
  return SafetensorsWriter(std::move(file), std::move(places));
}

absl::Status SafetensorsWriter::Append(const std::string& name,
                                       const void* data, int64_t byte_count) {
  const auto place = places_.find(name);
  LS_CHECK(place != places_.end());
  LS_CHECK(0 <= byte_count &&
           byte_count <= place->second.end - place->second.next);
  RETURN_IF_ERROR(file_.WriteAt(place->second.next, data, byte_count));
  place->second.next += byte_count;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  for (const auto& [name, place] : places_) {
    LS_CHECK(place.next == place.end);
  }
  return file_.Sync();
}

}  // namespace lockstep
