#include "worker/data/token_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/sha256.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr int64_t kFilesMax = 10'000;
constexpr int64_t kBlockBytes = 64 << 10;
constexpr int64_t kBlockCount = 1024;

int WidthOf(TokenFormat format) {
  switch (format) {
    case TokenFormat::kBytes:
      return 1;
    case TokenFormat::kTokensU16:
      return 2;
    case TokenFormat::kTokensU32:
      return 4;
  }
  LS_CHECK(false);
}

// Token `i` of little-endian ones.
template <int kWidth>
uint32_t TokenAt(const unsigned char* raw, int64_t i) {
  uint32_t token = 0;
  for (int b = 0; b < kWidth; ++b) {
    token |= static_cast<uint32_t>(raw[kWidth * i + b]) << (8 * b);
  }
  return token;
}

absl::Status InRange(const char* name, int64_t value, int64_t min,
                     int64_t max) {
  if (min <= value && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", min, " to ", max, ", got ", value));
}

absl::Status Validate(const TokenSourceOptions& o) {
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(InRange("number of data.files",
                          static_cast<int64_t>(o.files.size()), 1, kFilesMax));
  RETURN_IF_ERROR(InRange("vocab_size", o.vocabulary, 1, kInt32Max));
  RETURN_IF_ERROR(
      InRange("data.sequence_length", o.sequence_length, 1, 1 << 20));
  RETURN_IF_ERROR(InRange("data.stride", o.stride, 1, kInt32Max));
  RETURN_IF_ERROR(InRange("data.held_out_samples_max", o.held_out_samples_max,
                          0, kInt32Max));
  if (!(o.held_out_fraction >= 0 && o.held_out_fraction <= 0.5)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.held_out_fraction: expected 0 to 0.5, got ",
                     o.held_out_fraction));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenSource>> TokenSource::Open(
    TokenSourceOptions options) {
  RETURN_IF_ERROR(Validate(options));
  auto source =
      std::unique_ptr<TokenSource>(new TokenSource(std::move(options)));
  RETURN_IF_ERROR(source->OpenFiles());
  RETURN_IF_ERROR(source->CutSamples());
  return source;
}

absl::Status TokenSource::OpenFiles() {
  const int width = WidthOf(options_.format);
  int64_t joined_bytes = 0;
  for (const std::string& path : options_.files) {
    absl::StatusOr<RandomAccessFile> file = RandomAccessFile::Open(path);
    if (!file.ok()) return Annotate(file.status(), "data.files");
    if (file->size() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.files: ", path, ": is empty; expected tokens"));
    }
    if (file->size() % width != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.files: ", path, ": has ", file->size(),
          " bytes; expected a multiple of ", width, ", as data.format says"));
    }
    if (file->size() > std::numeric_limits<int64_t>::max() - joined_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.files: ", path, ": with it there are more than 2^63 bytes"));
    }
    DataFile& added = files_.emplace_back();
    added.path = path;
    added.first_byte = joined_bytes;
    added.byte_count = file->size();
    joined_bytes += file->size();
    if (files_.size() <= kOpenFilesMax) added.open = *std::move(file);
  }
  token_count_ = joined_bytes / width;
  return absl::OkStatus();
}

absl::Status TokenSource::CutSamples() {
  const int64_t length = options_.sequence_length;
  const auto held_out = static_cast<int64_t>(std::llround(
      options_.held_out_fraction * static_cast<double>(token_count_)));
  training_token_count_ = token_count_ - held_out;
  if (training_token_count_ < length + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", training_token_count_, " tokens to train on (", token_count_,
        " in ", files_.size(), " file(s), ", held_out,
        " of them held out); expected at least ", length + 1,
        ", one sample of sequence_length + 1; give more data or a smaller "
        "data.sequence_length"));
  }
  training_sample_count_ =
      (training_token_count_ - length - 1) / options_.stride + 1;
  if (options_.held_out_fraction == 0) return absl::OkStatus();
  if (held_out < length + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.held_out_fraction: ", held_out, " tokens of ", token_count_,
        " held out; expected at least ", length + 1,
        ", one sample of sequence_length + 1; give more data or a larger "
        "fraction"));
  }
  held_out_sample_count_ = (held_out - 1) / length;
  if (options_.held_out_samples_max > 0) {
    held_out_sample_count_ =
        std::min(held_out_sample_count_, options_.held_out_samples_max);
  }
  return absl::OkStatus();
}

const TokenSource::DataFile& TokenSource::FileAt(int64_t joined_byte) const {
  const auto after = std::upper_bound(
      files_.begin(), files_.end(), joined_byte,
      [](int64_t byte, const DataFile& f) { return byte < f.first_byte; });
  return *(after - 1);
}

absl::Status TokenSource::ReadJoined(int64_t joined_byte, int64_t byte_count,
                                     unsigned char* out) const {
  while (byte_count > 0) {
    const DataFile& file = FileAt(joined_byte);
    const int64_t offset = joined_byte - file.first_byte;
    const int64_t part = std::min(byte_count, file.byte_count - offset);
    if (file.open) {
      RETURN_IF_ERROR(file.open->ReadAt(offset, part, out));
    } else {
      ASSIGN_OR_RETURN(const RandomAccessFile reopened,
                       RandomAccessFile::Open(file.path));
      if (reopened.size() != file.byte_count) {
        return absl::DataLossError(absl::StrCat(
            file.path, ": has ", reopened.size(), " bytes; it had ",
            file.byte_count, " when the job started; restore it"));
      }
      RETURN_IF_ERROR(reopened.ReadAt(offset, part, out));
    }
    joined_byte += part;
    byte_count -= part;
    out += part;
  }
  return absl::OkStatus();
}

absl::Status TokenSource::OutsideVocabulary(int64_t joined_byte,
                                            uint32_t token) const {
  const DataFile& file = FileAt(joined_byte);
  return absl::InvalidArgumentError(absl::StrCat(
      file.path, ": byte ", joined_byte - file.first_byte, ": token ", token,
      "; expected below vocab_size=", options_.vocabulary));
}

// Reads the raw bytes into the end of the caller's memory and widens them from
// its start: token i is written to bytes [4i, 4i + 4) only after the raw bytes
// below 4i + 4 have been used, since the raw token j stands at
// 4n - width (n - j) >= 4j.
template <int kWidth>
absl::Status TokenSource::Convert(int64_t first_token, int32_t* tokens) const {
  const int64_t n = options_.sequence_length + 1;
  unsigned char* raw =
      reinterpret_cast<unsigned char*>(tokens) + (4 - kWidth) * n;
  RETURN_IF_ERROR(ReadJoined(first_token * kWidth, n * kWidth, raw));
  const auto vocabulary = static_cast<uint32_t>(options_.vocabulary);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t token = TokenAt<kWidth>(raw, i);
    if (token >= vocabulary) [[unlikely]] {
      return OutsideVocabulary((first_token + i) * kWidth, token);
    }
    tokens[i] = static_cast<int32_t>(token);
  }
  return absl::OkStatus();
}

absl::Status TokenSource::ReadTokens(int64_t first_token,
                                     int32_t* tokens) const {
  switch (options_.format) {
    case TokenFormat::kBytes:
      return Convert<1>(first_token, tokens);
    case TokenFormat::kTokensU16:
      return Convert<2>(first_token, tokens);
    case TokenFormat::kTokensU32:
      return Convert<4>(first_token, tokens);
  }
  LS_CHECK(false);
}

absl::Status TokenSource::ReadTrainingSample(int64_t sample,
                                             int32_t* tokens) const {
  LS_CHECK(0 <= sample && sample < training_sample_count_);
  return ReadTokens(sample * options_.stride, tokens);
}

absl::Status TokenSource::ReadHeldOutSample(int64_t sample,
                                            int32_t* tokens) const {
  LS_CHECK(0 <= sample && sample < held_out_sample_count_);
  return ReadTokens(training_token_count_ + sample * options_.sequence_length,
                    tokens);
}

template <int kWidth>
absl::Status TokenSource::CheckBlock(int64_t joined_byte, int64_t byte_count,
                                     const unsigned char* raw) const {
  // No value of the format is outside.
  if (kWidth < 4 && options_.vocabulary >= int64_t{1} << (8 * kWidth)) {
    return absl::OkStatus();
  }
  const auto vocabulary = static_cast<uint32_t>(options_.vocabulary);
  for (int64_t i = 0; i < byte_count / kWidth; ++i) {
    const uint32_t token = TokenAt<kWidth>(raw, i);
    if (token >= vocabulary) [[unlikely]] {
      return OutsideVocabulary(joined_byte + i * kWidth, token);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenSource::Fingerprint() const {
  Sha256 hash;
  hash.Update("lockstep data 1\n");
  hash.UpdateInteger(files_.size());
  for (const DataFile& file : files_) {
    hash.UpdateInteger(static_cast<uint64_t>(file.byte_count));
  }
  const int64_t total = files_.back().first_byte + files_.back().byte_count;
  std::vector<unsigned char> block(kBlockBytes);
  const auto take = [&](int64_t start, int64_t byte_count) -> absl::Status {
    RETURN_IF_ERROR(ReadJoined(start, byte_count, block.data()));
    hash.Update(block.data(), byte_count);
    switch (options_.format) {
      case TokenFormat::kBytes:
        return CheckBlock<1>(start, byte_count, block.data());
      case TokenFormat::kTokensU16:
        return CheckBlock<2>(start, byte_count, block.data());
      case TokenFormat::kTokensU32:
        return CheckBlock<4>(start, byte_count, block.data());
    }
    LS_CHECK(false);
  };
  if (total <= kFingerprintWholeBytesMax) {
    for (int64_t done = 0; done < total; done += kBlockBytes) {
      RETURN_IF_ERROR(take(done, std::min(kBlockBytes, total - done)));
    }
    return hash.HexDigest();
  }
  // Block k of K starts at k (total - block) / (K - 1), in two parts that
  // cannot overflow, rounded down to a whole token.
  const int64_t span = total - kBlockBytes;
  for (int64_t k = 0; k < kBlockCount; ++k) {
    const int64_t start = span / (kBlockCount - 1) * k +
                          span % (kBlockCount - 1) * k / (kBlockCount - 1);
    RETURN_IF_ERROR(
        take(start - start % WidthOf(options_.format), kBlockBytes));
  }
  return hash.HexDigest();
}

}  // namespace lockstep
