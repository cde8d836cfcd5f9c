#include "common/grpc_status.h"

#include <string>

#include "common/printable.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(GrpcStatusTest, EveryCodeComesBackWithItsMessage) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");

    const grpc::Status carried = ToGrpcStatus(status);

    EXPECT_EQ(carried.error_code(), code);
    EXPECT_EQ(FromGrpcStatus(carried), status);
  }
}

TEST(GrpcStatusTest, AnUnknownCodeIsAnErrorAllTheSame) {
  const grpc::Status odd(static_cast<grpc::StatusCode>(20), "odd");

  EXPECT_EQ(FromGrpcStatus(odd), absl::UnknownError("odd"));
}

TEST(GrpcStatusTest, ALongMessageIsCutToWhatAHeaderHolds) {
  const std::string kept =
      ToGrpcStatus(absl::InternalError(std::string(6000, 'x'))).error_message();
  EXPECT_EQ(kept, std::string(6000, 'x'));

  const std::string cut =
      ToGrpcStatus(absl::InternalError(std::string(6001, 'x'))).error_message();
  EXPECT_EQ(cut, std::string(6000, 'x') + " ... (1 more bytes)");

  // Line breaks take three bytes each.
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(std::string(2001, '\n')))
                .error_message(),
            std::string(2000, '\n') + " ... (1 more bytes)");

  // 1,999 encoded bytes before it leave no room for a whole two-byte character.
  std::string text = "x";
  for (int i = 0; i < 1500; ++i) text += "\xC3\xA9";
  EXPECT_FALSE(
      FindInvalidUtf8(ToGrpcStatus(absl::InternalError(text)).error_message())
          .has_value());
}

}  // namespace
}  // namespace lockstep
