#include "common/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// The examples published with the standard.
TEST(Sha256Test, GivesThePublishedAnswers) {
  Sha256 empty;
  EXPECT_EQ(empty.HexDigest(),
            "e3b0c44298fc1c149afbf4c8996fb924"
            "27ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.Update("abc");
  EXPECT_EQ(abc.HexDigest(),
            "ba7816bf8f01cfea414140de5dae2223"
            "b00361a396177a9cb410ff61f20015ad");
  Sha256 million;
  for (int i = 0; i < 1000; ++i) million.Update(std::string(1000, 'a'));
  EXPECT_EQ(million.HexDigest(),
            "cdc76e5c9914fb9281a1c7e284d73e67"
            "f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, IntegersAreEightLittleEndianBytes) {
  Sha256 integer;
  integer.UpdateInteger(0x0102030405060708);
  Sha256 bytes;
  bytes.Update("\x08\x07\x06\x05\x04\x03\x02\x01");
  EXPECT_EQ(integer.HexDigest(), bytes.HexDigest());
}

}  // namespace
}  // namespace lockstep
