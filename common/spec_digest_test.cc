#include "common/spec_digest.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(SpecDigestTest, IsTheSha256OfTheSerializedSpec) {
  // sha256sum of nothing, and of the bytes 0a 01 61 (field 1, "a").
  v1::JobSpec spec;
  EXPECT_EQ(SpecDigest(spec),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  spec.set_display_name("a");
  EXPECT_EQ(SpecDigest(spec),
            "23dca2a7429612378554b0bb5b85012dec00a17cc2c673f17d2b76a50b839cd5");
}

TEST(SpecDigestTest, TellsAnUnsetFieldFromItsDefault) {
  v1::JobSpec unset, written;
  unset.mutable_parallel();
  written.mutable_parallel()->set_overlap(true);

  EXPECT_NE(SpecDigest(unset), SpecDigest(written));
  EXPECT_EQ(SpecDigest(written), SpecDigest(v1::JobSpec(written)));
}

}  // namespace
}  // namespace lockstep
