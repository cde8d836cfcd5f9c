#include "worker/data/token_source.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/test_files.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TokenSourceOptions Options(std::vector<std::string> files,
                           int64_t sequence_length) {
  TokenSourceOptions options;
  options.files = std::move(files);
  options.vocabulary = 256;
  options.sequence_length = sequence_length;
  options.stride = sequence_length;
  return options;
}

std::unique_ptr<TokenSource> Open(const TokenSourceOptions& options) {
  absl::StatusOr<std::unique_ptr<TokenSource>> source =
      TokenSource::Open(options);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? *std::move(source) : nullptr;
}

std::vector<int32_t> Training(const TokenSource& source, int64_t sample) {
  // One more, to see that nothing is written behind the sample.
  std::vector<int32_t> tokens(source.sequence_length() + 2, -1);
  const absl::Status read = source.ReadTrainingSample(sample, tokens.data());
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_EQ(tokens.back(), -1);
  tokens.pop_back();
  return tokens;
}

std::vector<int32_t> HeldOut(const TokenSource& source, int64_t sample) {
  std::vector<int32_t> tokens(source.sequence_length() + 1, -1);
  const absl::Status read = source.ReadHeldOutSample(sample, tokens.data());
  EXPECT_TRUE(read.ok()) << read;
  return tokens;
}

// Tokens 0, 1, ..., n - 1.
std::string Counting(int n, int width) {
  std::string bytes;
  for (int i = 0; i < n; ++i) bytes += LittleEndian(i, width);
  return bytes;
}

TEST(TokenSourceTest, ReadsEveryFormat) {
  TestFolder folder;
  TokenSourceOptions options = Options({folder.Write("b", "ab\xff")}, 2);
  EXPECT_THAT(Training(*Open(options), 0), ElementsAre('a', 'b', 255));

  options = Options(
      {folder.Write("u16", std::string("\x01\x00\x34\x12\xff\xff", 6))}, 2);
  options.format = TokenFormat::kTokensU16;
  options.vocabulary = 65536;
  EXPECT_THAT(Training(*Open(options), 0), ElementsAre(1, 0x1234, 0xffff));

  options = Options(
      {folder.Write("u32", LittleEndian(7, 4) + LittleEndian(999'999, 4) +
                               LittleEndian(0x010203, 4))},
      2);
  options.format = TokenFormat::kTokensU32;
  options.vocabulary = 1'000'000;
  EXPECT_THAT(Training(*Open(options), 0), ElementsAre(7, 999'999, 0x010203));
}

// A file of llm.c's, with `token_count` in its header.
std::string Llmc(uint32_t magic, uint32_t version, uint32_t token_count,
                 const std::string& tokens) {
  std::string file = LittleEndian(magic, 4) + LittleEndian(version, 4) +
                     LittleEndian(token_count, 4);
  file.resize(1024, '\0');
  return file + tokens;
}

TEST(TokenSourceTest, ReadsTheFilesOfLlmC) {
  TestFolder folder;
  const auto two = [&](const char* name, int begin) {
    return folder.Write(
        name, Llmc(20240520, 1, 3,
                   LittleEndian(begin, 2) + LittleEndian(begin + 1, 2) +
                       LittleEndian(begin + 2, 2)));
  };
  TokenSourceOptions options = Options({two("a", 1000), two("b", 2000)}, 5);
  options.format = TokenFormat::kLlmc;
  options.vocabulary = 50257;
  EXPECT_EQ(Open(options)->token_count(), 6);
  EXPECT_THAT(Training(*Open(options), 0),
              ElementsAre(1000, 1001, 1002, 2000, 2001, 2002));
  EXPECT_TRUE(Open(options)->Fingerprint().ok());
  options.vocabulary = 2002;
  // The place is that in the file.
  EXPECT_THAT(std::string(Open(options)->Fingerprint().status().message()),
              HasSubstr("b: byte 1028: token 2002"));

  options.files = {folder.Write(
      "c", Llmc(20240801, 7, 2, LittleEndian(99999, 4) + LittleEndian(7, 4)))};
  options.sequence_length = 1;
  options.vocabulary = 128256;
  EXPECT_THAT(Training(*Open(options), 0), ElementsAre(99999, 7));

  const std::pair<std::vector<std::string>, const char*> kWrong[] = {
      {{folder.Write("w1", "short")}, "w1: has 5 bytes; expected the header"},
      {{folder.Write("w2", Llmc(1, 1, 1, "ab"))}, "w2: begins with 1, 1"},
      {{folder.Write("w3", Llmc(20240520, 2, 1, "ab"))}, "20240520, 2"},
      {{folder.Write("w4", Llmc(20240520, 1, 2, "ab"))},
       "w4: has 1026 bytes; expected 1028, since its header says 2 tokens"},
      {{folder.Write("w5", Llmc(20240520, 1, 0, ""))},
       "a header and no tokens"},
      {{two("a", 1), folder.Path("c")},
       "c: has tokens of 4 bytes; expected 2, as in"},
  };
  for (const auto& [files, said] : kWrong) {
    options.files = files;
    const absl::Status status = TokenSource::Open(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << said;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}

TEST(TokenSourceTest, AMaskMarksTokensThatAreNoTargets) {
  TestFolder folder;
  TokenSourceOptions options = Options(
      {folder.Write("a", Counting(3, 2)), folder.Write("b", Counting(2, 2))},
      4);
  options.format = TokenFormat::kTokensU16;
  options.mask_files = {folder.Write("ma", std::string("\1\0\0", 3)),
                        folder.Write("mb", std::string("\1\0", 2))};
  EXPECT_THAT(Training(*Open(options), 0), ElementsAre(0, ~1, ~2, 0, ~1));

  // The mask is part of the data.
  const std::string print = *Open(options)->Fingerprint();
  folder.Write("mb", std::string("\1\1", 2));
  EXPECT_NE(*Open(options)->Fingerprint(), print);
  options.mask_files.clear();
  EXPECT_NE(*Open(options)->Fingerprint(), print);
}

TEST(TokenSourceTest, AWrongMaskIsRefusedByName) {
  TestFolder folder;
  TokenSourceOptions options = Options(
      {folder.Write("a", Counting(3, 2)), folder.Write("b", Counting(2, 2))},
      4);
  options.format = TokenFormat::kTokensU16;
  const auto refuse = [&](const std::vector<std::string>& masks,
                          const char* said) {
    options.mask_files = masks;
    EXPECT_THAT(std::string(TokenSource::Open(options).status().message()),
                HasSubstr(said));
  };
  const std::string three = folder.Write("three", std::string(3, '\1'));
  refuse({three}, "data.mask_files: expected one for each of data.files, 2");
  refuse({three, three},
         "three: has 3 bytes; expected 2, one for each token of");
  refuse({three, folder.Path("none")}, "data.mask_files");

  options.mask_files = {folder.Write("none3", std::string(3, '\0')),
                        folder.Write("none2", std::string(2, '\0'))};
  EXPECT_THAT(std::string(Open(options)->Fingerprint().status().message()),
              HasSubstr("data.mask_files: no token of the training part, "
                        "tokens 1 to 4, counts"));

  options.mask_files = {three, folder.Write("odd", std::string("\1\2", 2))};
  const auto source = Open(options);
  std::vector<int32_t> tokens(5);
  for (const absl::Status& status :
       {source->Fingerprint().status(),
        source->ReadTrainingSample(0, tokens.data())}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("odd: byte 1: 2; expected 0 or 1"));
  }
}

// Each part alone: what is trained on, and what is evaluated.
TEST(TokenSourceTest, AMaskThatLeavesNothingOfAPartIsRefusedByName) {
  TestFolder folder;
  TokenSourceOptions options = Options({folder.Write("a", Counting(40, 1))}, 4);
  options.held_out_fraction = 0.5;
  const auto refused = [&](int first, int end) {
    std::string mask(40, '\0');
    for (int i = first; i < end; ++i) mask[i] = 1;
    options.mask_files = {folder.Write("mask", mask)};
    return std::string(Open(options)->Fingerprint().status().message());
  };
  EXPECT_EQ(refused(0, 40), "");
  EXPECT_EQ(refused(1, 40), "");
  // No target comes before the first token.
  EXPECT_THAT(refused(0, 1), HasSubstr("no token of the training part"));
  EXPECT_THAT(refused(20, 40), HasSubstr("no token of the training part"));
  EXPECT_THAT(refused(0, 20), HasSubstr("no token of the held-out part"));
  options.held_out_fraction = 0;
  EXPECT_EQ(refused(0, 20), "");
}

TEST(TokenSourceTest, SamplesStartAStrideApartAndEndInsideTheData) {
  TestFolder folder;
  for (TokenFormat format : {TokenFormat::kBytes, TokenFormat::kTokensU16,
                             TokenFormat::kTokensU32}) {
    const int width = format == TokenFormat::kBytes       ? 1
                      : format == TokenFormat::kTokensU16 ? 2
                                                          : 4;
    for (int64_t stride : {1, 3, 5, 9}) {
      for (int n = 6; n <= 40; ++n) {
        TokenSourceOptions options =
            Options({folder.Write("data", Counting(n, width))}, 5);
        options.format = format;
        options.stride = stride;
        const auto source = Open(options);
        ASSERT_NE(source, nullptr);
        ASSERT_EQ(source->token_count(), n);
        int64_t count = 0;
        for (int64_t start = 0; start + 6 <= n; start += stride, ++count) {
          ASSERT_LT(count, source->training_sample_count());
          const auto s = static_cast<int32_t>(start);
          ASSERT_THAT(Training(*source, count),
                      ElementsAre(s, s + 1, s + 2, s + 3, s + 4, s + 5));
        }
        ASSERT_EQ(source->training_sample_count(), count);
        ASSERT_EQ(source->held_out_sample_count(), 0);
      }
    }
  }
}

TEST(TokenSourceTest, SamplesSpanFiles) {
  TestFolder folder;
  // 30 tokens in files of 1, 2, 3, ... tokens.
  std::vector<std::string> files;
  int next = 0;
  for (int n = 1; next + n <= 30; ++n) {
    std::string content;
    for (int i = 0; i < n; ++i) content += LittleEndian(next++, 2);
    files.push_back(folder.Write(absl::StrCat("part", n), content));
  }
  TokenSourceOptions options = Options(files, 8);
  options.format = TokenFormat::kTokensU16;
  options.stride = 1;
  const auto source = Open(options);
  ASSERT_EQ(source->training_sample_count(), next - 8);
  for (int64_t sample = 0; sample < next - 8; ++sample) {
    std::vector<int32_t> want;
    for (int64_t i = 0; i <= 8; ++i) want.push_back(sample + i);
    EXPECT_EQ(Training(*source, sample), want);
  }
}

TEST(TokenSourceTest, MoreFilesThanStayOpenAreReadAllTheSame) {
  TestFolder folder;
  constexpr int kFiles = JoinedFiles::kOpenFilesMax + 10;
  std::vector<std::string> files;
  for (int i = 0; i < kFiles; ++i) {
    files.push_back(folder.Write(absl::StrCat("f", i),
                                 std::string(2, static_cast<char>(i))));
  }
  const auto source = Open(Options(files, 2));
  // Samples start at every file's first token.
  for (int i : {0, 255, 256, kFiles - 2}) {
    EXPECT_THAT(Training(*source, i),
                ElementsAre(i % 256, i % 256, (i + 1) % 256));
  }

  folder.Write(absl::StrCat("f", kFiles - 1), "x");
  std::vector<int32_t> tokens(3);
  const absl::Status changed =
      source->ReadTrainingSample(kFiles - 2, tokens.data());
  EXPECT_EQ(changed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(changed.message(), HasSubstr("f265: has 1 bytes; it had 2"));
}

TEST(TokenSourceTest, TheHeldOutPartIsTheTailAndNeverTrainedOn) {
  TestFolder folder;
  TokenSourceOptions options =
      Options({folder.Write("data", Counting(100, 1))}, 4);
  options.stride = 1;
  options.held_out_fraction = 0.2;
  const auto source = Open(options);
  // 80 tokens to train on: the last sample is 75 to 79.
  ASSERT_EQ(source->training_sample_count(), 76);
  EXPECT_THAT(Training(*source, 75), ElementsAre(75, 76, 77, 78, 79));
  // 20 held out, 80 to 99: starts at 80, 84, 88, 92; 96 would need 100.
  ASSERT_EQ(source->held_out_sample_count(), 4);
  EXPECT_THAT(HeldOut(*source, 0), ElementsAre(80, 81, 82, 83, 84));
  EXPECT_THAT(HeldOut(*source, 3), ElementsAre(92, 93, 94, 95, 96));

  options.held_out_samples_max = 3;
  EXPECT_EQ(Open(options)->held_out_sample_count(), 3);
  options.held_out_samples_max = 5;
  EXPECT_EQ(Open(options)->held_out_sample_count(), 4);
  // 0.29 x 100 is below 29 in binary.
  options.held_out_fraction = 0.29;
  EXPECT_THAT(HeldOut(*Open(options), 0), ElementsAre(71, 72, 73, 74, 75));
}

TEST(TokenSourceTest, OffsetsHave64Bits) {
  TestFolder folder;
  const int64_t size = (int64_t{5} << 30) + 8;
  const std::string path = folder.Write("sparse", "");
  std::filesystem::resize_file(path, size);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(size - 8);
  file << LittleEndian(11, 4) << LittleEndian(12, 4);
  file.close();
  TokenSourceOptions options = Options({folder.Write("head", "0123"), path}, 1);
  options.format = TokenFormat::kTokensU32;
  options.vocabulary = std::numeric_limits<int32_t>::max();
  const auto source = Open(options);
  EXPECT_THAT(Training(*source, source->training_sample_count() - 1),
              ElementsAre(11, 12));
  EXPECT_EQ(source->Fingerprint()->size(), 64u);
}

TEST(TokenSourceTest, ATokenOutsideTheVocabularyIsNamedWithItsPlace) {
  TestFolder folder;
  TokenSourceOptions options =
      Options({folder.Write("first", Counting(10, 2)),
               folder.Write("second", Counting(3, 2) + LittleEndian(500, 2) +
                                          Counting(8, 2))},
              4);
  options.format = TokenFormat::kTokensU16;
  options.vocabulary = 500;
  std::vector<int32_t> tokens(5);
  auto source = Open(options);
  EXPECT_TRUE(source->ReadTrainingSample(1, tokens.data()).ok());
  EXPECT_TRUE(source->ReadTrainingSample(4, tokens.data()).ok());
  for (int64_t sample : {3}) {
    const absl::Status status =
        source->ReadTrainingSample(sample, tokens.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              absl::StrCat(folder.Path("second"),
                           ": byte 6: token 500; expected below "
                           "vocab_size=500"));
  }
  options.vocabulary = 501;
  EXPECT_THAT(Training(*Open(options), 3), ElementsAre(2, 500, 0, 1, 2));

  // Above 2^31: not taken for a negative number.
  options = Options({folder.Write("u32", std::string(8, '\xff'))}, 1);
  options.format = TokenFormat::kTokensU32;
  EXPECT_THAT(Open(options)->ReadTrainingSample(0, tokens.data()).message(),
              HasSubstr("token 4294967295"));

  // Bytes are tokens like others.
  options = Options({folder.Write("b", "ab\x80")}, 2);
  options.vocabulary = 128;
  EXPECT_THAT(Open(options)->ReadTrainingSample(0, tokens.data()).message(),
              HasSubstr("byte 2: token 128; expected below vocab_size=128"));
}

TEST(TokenSourceTest, RefusesBadFilesWithOneClearMessage) {
  TestFolder folder;
  const std::string good = folder.Write("good", std::string(100, 'x'));

  struct Case {
    TokenSourceOptions options;
    absl::StatusCode code;
    std::string said;
  };
  std::vector<Case> cases = {
      {Options({good, folder.Path("absent")}, 4), absl::StatusCode::kNotFound,
       "data.files: " + folder.Path("absent") +
           ": cannot open: No such file or directory"},
      {Options({folder.path()}, 4), absl::StatusCode::kInvalidArgument,
       folder.path() + ": is a directory; expected a regular file"},
      {Options({good, folder.Write("empty", "")}, 4),
       absl::StatusCode::kInvalidArgument, folder.Path("empty") + ": is empty"},
      {Options({good}, 100), absl::StatusCode::kInvalidArgument,
       "100 tokens to train on (100 in 1 file(s), 0 of them held out); "
       "expected at least 101"},
      {Options({}, 4), absl::StatusCode::kInvalidArgument, "data.files"},
      {Options({good}, 0), absl::StatusCode::kInvalidArgument,
       "data.sequence_length"},
  };
  cases.push_back(
      {Options({folder.Write("odd", "12345")}, 1),
       absl::StatusCode::kInvalidArgument,
       folder.Path("odd") + ": has 5 bytes; expected a multiple of 4"});
  cases.back().options.format = TokenFormat::kTokensU32;
  cases.push_back({Options({good}, 60), absl::StatusCode::kInvalidArgument,
                   "60 tokens to train on (100 in 1 file(s), 40 of them"});
  cases.back().options.held_out_fraction = 0.4;
  cases.push_back({Options({good}, 40), absl::StatusCode::kInvalidArgument,
                   "40 tokens of 100 held out; expected at least 41"});
  cases.back().options.held_out_fraction = 0.4;
  cases.push_back({Options({good}, 4), absl::StatusCode::kInvalidArgument,
                   "data.held_out_fraction: expected 0 to 0.5, got 0.6"});
  cases.back().options.held_out_fraction = 0.6;
  cases.push_back(
      {Options({good}, 4), absl::StatusCode::kInvalidArgument, "data.stride"});
  cases.back().options.stride = 0;
  cases.push_back(
      {Options({good}, 4), absl::StatusCode::kInvalidArgument, "vocab_size"});
  cases.back().options.vocabulary = 0;

  for (const Case& c : cases) {
    const absl::Status status = TokenSource::Open(c.options).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.said));
  }
}

TEST(TokenSourceTest, FingerprintTellsDataApart) {
  TestFolder folder;
  const auto print = [](const std::vector<std::string>& files) {
    return *Open(Options(files, 2))->Fingerprint();
  };
  const std::string ab = folder.Write("ab", "abab");
  const std::string cd = folder.Write("cd", "cdcd");
  const std::string base = print({ab, cd});
  std::filesystem::create_directory(folder.Path("elsewhere"));
  folder.Write("elsewhere/ab", "abab");
  EXPECT_EQ(print({folder.Path("elsewhere/ab"), cd}), base);
  EXPECT_NE(print({cd, ab}), base);
  EXPECT_NE(print({ab}), base);
  // The same bytes joined, split elsewhere.
  EXPECT_NE(print({folder.Write("x", "ababc"), folder.Write("y", "dcd")}),
            base);
  EXPECT_NE(print({ab, folder.Write("z", "cdce")}), base);
}

TEST(TokenSourceTest, FingerprintOfLargeDataSamplesBothEnds) {
  TestFolder folder;
  const int64_t size = TokenSource::kFingerprintWholeBytesMax + 4321;
  const std::string path = folder.Write("large", "");
  std::filesystem::resize_file(path, size);  // Sparse.
  const auto print = [&] { return *Open(Options({path}, 2))->Fingerprint(); };
  const auto poke = [&](int64_t byte, char value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(byte);
    file.put(value);
  };
  const std::string base = print();
  for (int64_t byte : {int64_t{0}, size - 1}) {
    poke(byte, 1);
    EXPECT_NE(print(), base) << byte;
    poke(byte, 0);
  }
  EXPECT_EQ(print(), base);
}

TEST(TokenSourceTest, FingerprintMeetsATokenOutsideTheVocabulary) {
  TestFolder folder;
  TokenSourceOptions options =
      Options({folder.Write("a", std::string("\1\0\2\0", 4)),
               folder.Write("b", std::string("\3\0\xF4\1", 4))},
              2);
  options.format = TokenFormat::kTokensU16;
  options.vocabulary = 501;
  EXPECT_TRUE(Open(options)->Fingerprint().ok());
  options.vocabulary = 500;
  const absl::Status status = Open(options)->Fingerprint().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("b: byte 2: token 500; expected below vocab_size=500"));

  const std::string large = folder.Write("large", "");
  const int64_t size = TokenSource::kFingerprintWholeBytesMax + 4322;
  std::filesystem::resize_file(large, size);  // Sparse.
  std::fstream(large, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(size - 1)
      .put(2);
  options.files = {large};
  EXPECT_THAT(std::string(Open(options)->Fingerprint().status().message()),
              HasSubstr(absl::StrCat("byte ", size - 2, ": token 512;")));
}

}  // namespace
}  // namespace lockstep
