#include "worker/link/frame.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr size_t kHeaderBytes = 4;

}  // namespace

absl::Status AppendFrame(absl::string_view payload, std::string& stream) {
  if (payload.size() > kFrameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", payload.size(),
                     " bytes, expected at most ", kFrameBytesMax));
  }
  const auto length = static_cast<uint32_t>(payload.size());
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    stream.push_back(static_cast<char>(length >> (8 * i) & 0xFF));
  }
  stream.append(payload.data(), payload.size());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> FrameParser::Next() {
  if (stream_.size() - read_ >= kHeaderBytes) {
    uint32_t length = 0;
    for (size_t i = 0; i < kHeaderBytes; ++i) {
      length |= uint32_t{static_cast<uint8_t>(stream_[read_ + i])} << (8 * i);
    }
    if (length > kFrameBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a frame of ", length, " bytes, expected at most ",
                       kFrameBytesMax, ": this is no message"));
    }
    if (stream_.size() - read_ - kHeaderBytes >= length) {
      std::string payload = stream_.substr(read_ + kHeaderBytes, length);
      read_ += kHeaderBytes + length;
      return std::optional<std::string>(std::move(payload));
    }
  }
  // All complete frames are out: what is left moves once, to the front.
  stream_.erase(0, read_);
  read_ = 0;
  return std::optional<std::string>();
}

}  // namespace lockstep
