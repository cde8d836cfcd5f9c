#include "worker/trainer/output_directory.h"

#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/durable_file.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

GenerationKey Key(int64_t generation, const char* job = "j-one") {
  return {JobId{job}, generation};
}

std::unique_ptr<OutputDirectory> MustClaim(const std::string& path,
                                           const GenerationKey& key,
                                           const char* random = "ab12") {
  auto output = OutputDirectory::Claim(path, key, random);
  EXPECT_TRUE(output.ok()) << output.status();
  return *std::move(output);
}

void WriteModel(const OutputDirectory& output, const char* content) {
  ASSERT_TRUE(CreateNewFolder(output.model_path()).ok());
  ASSERT_TRUE(WriteNewFile(output.model_path() + "/weights", content).ok());
}

int CountEntries(const std::string& path) {
  return static_cast<int>(
      std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

TEST(OutputDirectoryTest, CommitIsARenameAndLeavesNothingElse) {
  TestFolder folder;
  const std::string out = folder.Path("a/b");
  {
    auto output = MustClaim(out, Key(1));
    EXPECT_FALSE(output->already_committed());
    WriteModel(*output, "w");
    EXPECT_FALSE(fs::exists(out + "/model"));

    EXPECT_TRUE(output->Commit().ok());
    EXPECT_EQ(CountEntries(out), 1);
    EXPECT_TRUE(output->Commit().ok());
  }
  EXPECT_EQ(folder.Read("a/b/model/weights"), "w");
  EXPECT_EQ(CountEntries(out), 1);
}

TEST(OutputDirectoryTest, WithoutCommitNothingIsLeftOfWhatItMade) {
  TestFolder folder;
  WriteModel(*MustClaim(folder.Path("new"), Key(1)), "w");
  EXPECT_FALSE(fs::exists(folder.Path("new")));

  fs::create_directory(folder.Path("old"));
  WriteModel(*MustClaim(folder.Path("old"), Key(1)), "w");
  EXPECT_EQ(CountEntries(folder.Path("old")), 0);
}

TEST(OutputDirectoryTest, AnotherModelIsNeverOverwritten) {
  TestFolder folder;
  fs::create_directory(folder.Path("model"));
  folder.Write("model/weights", "precious");

  const auto output = OutputDirectory::Claim(folder.path(), Key(1), "ab12");

  EXPECT_EQ(output.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(output.status().message()),
              HasSubstr(folder.Path("model")));
  EXPECT_EQ(folder.Read("model/weights"), "precious");
  EXPECT_EQ(CountEntries(folder.path()), 1);
}

TEST(OutputDirectoryTest, AModelThatAppearsMeanwhileIsNotOverwritten) {
  TestFolder folder;
  auto output = MustClaim(folder.path(), Key(1));
  WriteModel(*output, "mine");
  fs::create_directory(folder.Path("model"));
  folder.Write("model/weights", "precious");

  const absl::Status status = output->Commit();
  output.reset();

  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(folder.Read("model/weights"), "precious");
  // What was trained is not lost.
  EXPECT_EQ(folder.Read("model-j-one/weights"), "mine");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is in " + folder.Path("model-j-one")));
  EXPECT_EQ(CountEntries(folder.path()), 2);
}

TEST(OutputDirectoryTest, AModelThatCanGoNowhereStays) {
  TestFolder folder;
  auto output = MustClaim(folder.path(), Key(1));
  WriteModel(*output, "mine");
  const std::string path = output->model_path();
  for (const char* name : {"model", "model-j-one"}) {
    fs::create_directory(folder.Path(name));
    folder.Write(std::string(name) + "/weights", "precious");
  }

  const absl::Status status = output->Commit();
  output.reset();
  MustClaim(folder.Path("model/other"), Key(1, "j-two"));

  EXPECT_THAT(std::string(status.message()), HasSubstr("is in " + path));
  EXPECT_TRUE(fs::exists(path + "/weights"));
}

TEST(OutputDirectoryTest, NothingIsLeftToWriteAtTheEnd) {
  TestFolder folder;
  auto output = MustClaim(folder.path(), Key(1));
  WriteModel(*output, "mine");
  const std::string marker =
      folder.Read(output->nonce() + std::string("/lockstep.json"));

  ASSERT_TRUE(output->Commit().ok());

  EXPECT_EQ(folder.Read("model/lockstep.json"), marker);
  EXPECT_THAT(marker, HasSubstr("j-one"));
}

TEST(OutputDirectoryTest, LeftoversOfOneJobCanBeRemoved) {
  TestFolder folder;
  for (const char* name : {".lockstep-j-one-g1-ff", ".lockstep-j-two-g1-ff"}) {
    fs::create_directories(folder.Path(name) + "/model");
    folder.Write(std::string(name) + "/nonce", name);
  }
  const auto alive = MustClaim(folder.Path("alive"), Key(2));

  OutputDirectory::RemoveLeftovers(folder.path(), JobId{"j-one"});
  OutputDirectory::RemoveLeftovers(folder.Path("alive"), JobId{"j-one"});
  OutputDirectory::RemoveLeftovers(folder.Path("nowhere"), JobId{"j-one"});

  EXPECT_FALSE(fs::exists(folder.Path(".lockstep-j-one-g1-ff")));
  EXPECT_TRUE(fs::exists(folder.Path(".lockstep-j-two-g1-ff")));
  EXPECT_TRUE(fs::exists(folder.Path("alive/" + alive->nonce())));
}

TEST(OutputDirectoryTest, AJobKnowsItsOwnResultAgain) {
  TestFolder folder;
  {
    auto output = MustClaim(folder.path(), Key(3));
    WriteModel(*output, "w");
    ASSERT_TRUE(output->Commit().ok());
  }
  EXPECT_TRUE(MustClaim(folder.path(), Key(4))->already_committed());
  EXPECT_EQ(OutputDirectory::Claim(folder.path(), Key(1, "j-two"), "ab12")
                .status()
                .code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(folder.Read("model/weights"), "w");
}

TEST(OutputDirectoryTest, AnEarlierGenerationMayHaveCommittedMeanwhile) {
  TestFolder folder;
  auto late = MustClaim(folder.path(), Key(1));
  WriteModel(*late, "w");
  // Generation 2 clears away what it takes for dead, so make it first.
  auto next = MustClaim(folder.Path("elsewhere"), Key(2));
  ASSERT_TRUE(late->Commit().ok());
  auto next_here = MustClaim(folder.path(), Key(2));

  EXPECT_TRUE(next_here->already_committed());
  EXPECT_TRUE(next_here->Commit().ok());
}

TEST(OutputDirectoryTest, LeftoversOfTheDeadAreRemoved) {
  TestFolder folder;
  for (const char* name :
       {".lockstep-j-one-g1-ff", ".lockstep-j-one-g2-ff",
        ".lockstep-j-two-g1-ff", ".lockstep-j-one-gx-ff", "mine"}) {
    fs::create_directories(folder.Path(name) + "/model");
    folder.Write(std::string(name) + "/nonce", name);
  }
  auto output = MustClaim(folder.path(), Key(3));

  EXPECT_FALSE(fs::exists(folder.Path(".lockstep-j-one-g1-ff")));
  EXPECT_FALSE(fs::exists(folder.Path(".lockstep-j-one-g2-ff")));
  EXPECT_FALSE(fs::exists(folder.Path(".lockstep-j-two-g1-ff")));
  EXPECT_TRUE(fs::exists(folder.Path(".lockstep-j-one-gx-ff")));
  EXPECT_TRUE(fs::exists(folder.Path("mine")));
}

TEST(OutputDirectoryTest, AnotherJobAtWorkIsNamedAndNotDisturbed) {
  TestFolder folder;
  auto other = MustClaim(folder.path(), Key(1, "j-two"));
  WriteModel(*other, "w");

  const auto output = OutputDirectory::Claim(folder.path(), Key(1), "ab12");
  EXPECT_EQ(output.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(output.status().message()), HasSubstr("jobs/j-two"));
  EXPECT_TRUE(fs::exists(other->model_path() + "/weights"));

  other.reset();
  MustClaim(folder.path(), Key(1));
}

// However they meet: never two at work, and nothing said but that.
TEST(OutputDirectoryTest, OfThoseWhoComeTogetherAtMostOneStays) {
  TestFolder folder;
  const std::string out = folder.Path("out");
  for (int round = 0; round < 100; ++round) {
    std::vector<absl::StatusOr<std::unique_ptr<OutputDirectory>>> claims(4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        claims[i] = OutputDirectory::Claim(out, {{absl::StrCat("job-", i)}, 1},
                                           absl::StrCat(round));
      });
    }
    for (std::thread& thread : threads) thread.join();
    int stay = 0;
    for (const auto& claim : claims) {
      stay += claim.ok();
      if (claim.ok()) continue;
      EXPECT_EQ(claim.status().code(), absl::StatusCode::kFailedPrecondition)
          << claim.status();
      EXPECT_THAT(std::string(claim.status().message()),
                  HasSubstr("is in use"));
    }
    EXPECT_LE(stay, 1);
  }
}

TEST(OutputDirectoryTest, OtherRanksFindTheNonceOnlyInTheSameFolder) {
  TestFolder folder;
  auto output = MustClaim(folder.Path("here"), Key(1));
  fs::create_directory(folder.Path("there"));

  EXPECT_TRUE(
      OutputDirectory::Verify(folder.Path("here"), output->nonce()).ok());
  EXPECT_EQ(
      OutputDirectory::Verify(folder.Path("there"), output->nonce()).code(),
      absl::StatusCode::kNotFound);
  EXPECT_FALSE(OutputDirectory::Verify(folder.Path("here"), "").ok());
  EXPECT_FALSE(
      OutputDirectory::Verify(folder.Path("here"), "../here/" + output->nonce())
          .ok());
}

TEST(OutputDirectoryTest, AFileInTheWayIsNamed) {
  TestFolder folder;
  const std::string file = folder.Write("file", "");

  const auto output = OutputDirectory::Claim(file + "/out", Key(1), "ab12");

  EXPECT_FALSE(output.ok());
  EXPECT_THAT(std::string(output.status().message()), HasSubstr(file));
  EXPECT_THAT(std::string(output.status().message()),
              HasSubstr("output_directory"));
}

}  // namespace
}  // namespace lockstep
