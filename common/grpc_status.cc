#include "common/grpc_status.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

// Leaves the rest of 8,192 bytes for other headers.
constexpr size_t kEncodedBytesMax = 6000;

// As gRPC over HTTP/2 encodes `grpc-message`.
size_t EncodedBytes(char c) {
  return c >= 0x20 && c <= 0x7E && c != '%' ? 1 : 3;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message();
  size_t kept = 0;
  for (size_t encoded = 0; kept < message.size(); ++kept) {
    encoded += EncodedBytes(message[kept]);
    if (encoded > kEncodedBytesMax) break;
  }
  std::string text(message.substr(0, kept));
  if (kept < message.size()) {
    // Not within a character.
    while (!text.empty() &&
           (static_cast<unsigned char>(message[text.size()]) & 0xC0) == 0x80) {
      text.pop_back();
    }
    absl::StrAppend(&text, " ... (", message.size() - text.size(),
                    " more bytes)");
  }
  // The codes are the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = status.error_code();
  return absl::Status(code >= 1 && code <= 16
                          ? static_cast<absl::StatusCode>(code)
                          : absl::StatusCode::kUnknown,
                      status.error_message());
}

}  // namespace lockstep
