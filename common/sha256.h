// SHA-256 (FIPS 180-4).
#ifndef COMMON_SHA256_H_
#define COMMON_SHA256_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;  // EVP_MD_CTX of OpenSSL.

namespace lockstep {

// Takes bytes in any number of pieces.  Not thread-safe.
class Sha256 {
 public:
  Sha256();

  void Update(const void* data, int64_t byte_count);
  void Update(absl::string_view bytes);

  // Eight bytes, little-endian: how lengths and numbers are framed.
  void UpdateInteger(uint64_t value);

  // 64 lowercase hexadecimal digits of what was given.  Ends it: no Update
  // after this.
  std::string HexDigest();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace lockstep

#endif  // COMMON_SHA256_H_
