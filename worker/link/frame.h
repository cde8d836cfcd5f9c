// Messages on a byte stream: each as its length (4 bytes, little-endian) and
// then its bytes.
#ifndef WORKER_LINK_FRAME_H_
#define WORKER_LINK_FRAME_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// A longer one is taken for garbage.  Above what a coordinator may send.
inline constexpr size_t kFrameBytesMax = 16 << 20;

// Appends `payload` as a frame to `stream`.
//
// Errors:
//   InvalidArgument: it is longer than kFrameBytesMax.
absl::Status AppendFrame(absl::string_view payload, std::string& stream);

// Cuts a stream, given in pieces of any size, into its frames.  Not
// thread-safe.
class FrameParser {
 public:
  void Append(absl::string_view bytes) {
    stream_.append(bytes.data(), bytes.size());
  }

  // The next payload; nothing while it is not all there.
  //
  // Errors:
  //   InvalidArgument: a length is above kFrameBytesMax; what follows it cannot
  //     be read any more.
  absl::StatusOr<std::optional<std::string>> Next();

  // Whether the stream, if it ended here, would end within a frame.
  bool in_frame() const { return read_ < stream_.size(); }

 private:
  std::string stream_;
  size_t read_ = 0;  // Bytes of stream_ that were returned.
};

}  // namespace lockstep

#endif  // WORKER_LINK_FRAME_H_
