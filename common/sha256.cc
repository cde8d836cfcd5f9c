#include "common/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace lockstep {

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

// OpenSSL's digests fail only without memory, or when a provider is missing.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  LS_CHECK(context_ != nullptr);
  LS_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Update(const void* data, int64_t byte_count) {
  LS_CHECK(byte_count >= 0);
  LS_CHECK(EVP_DigestUpdate(context_.get(), data,
                            static_cast<size_t>(byte_count)) == 1);
}

void Sha256::Update(absl::string_view bytes) {
  Update(bytes.data(), static_cast<int64_t>(bytes.size()));
}

void Sha256::UpdateInteger(uint64_t value) {
  std::array<unsigned char, 8> bytes;
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<unsigned char>(value >> (8 * i));
  }
  Update(bytes.data(), bytes.size());
}

std::string Sha256::HexDigest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  LS_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

}  // namespace lockstep
