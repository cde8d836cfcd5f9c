#include "worker/data/token_source.h"

#include <algorithm>
#include <cmath>
#include <iterator>
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

// Of llm.c's files, which begin with 256 little-endian 32-bit integers.
constexpr int64_t kLlmcHeaderBytes = 1024;

absl::StatusOr<FileForm> LlmcForm(const RandomAccessFile& file) {
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": ", what,
                     "; expected the header of llm.c's token files "
                     "(data.format is LLM_C): 20240520, 1 for 16-bit tokens, "
                     "20240801, 7 for 32-bit ones"));
  };
  if (file.size() < kLlmcHeaderBytes) {
    return wrong(absl::StrCat("has ", file.size(), " bytes"));
  }
  unsigned char header[12];
  RETURN_IF_ERROR(file.ReadAt(0, sizeof header, header));
  const auto word = [&](int i) {
    uint32_t value = 0;
    for (int b = 0; b < 4; ++b) {
      value |= static_cast<uint32_t>(header[4 * i + b]) << (8 * b);
    }
    return value;
  };
  // Magic number and version: those of GPT-2's tokens and of Llama 3's.
  FileForm form{.header_bytes = kLlmcHeaderBytes};
  if (word(0) == 20240520 && word(1) == 1) {
    form.unit_bytes = 2;
  } else if (word(0) == 20240801 && word(1) == 7) {
    form.unit_bytes = 4;
  } else {
    return wrong(absl::StrCat("begins with ", word(0), ", ", word(1)));
  }
  const int64_t expected =
      kLlmcHeaderBytes + int64_t{word(2)} * form.unit_bytes;
  if (file.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": has ", file.size(), " bytes; expected ",
                     expected, ", since its header says ", word(2), " tokens"));
  }
  return form;
}

absl::StatusOr<FileForm> FormOf(TokenFormat format,
                                const RandomAccessFile& file) {
  switch (format) {
    case TokenFormat::kBytes:
      return FileForm{.unit_bytes = 1};
    case TokenFormat::kTokensU16:
      return FileForm{.unit_bytes = 2};
    case TokenFormat::kTokensU32:
      return FileForm{.unit_bytes = 4};
    case TokenFormat::kLlmc:
      return LlmcForm(file);
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
  ASSIGN_OR_RETURN(tokens_,
                   JoinedFiles::Open("data.files", options_.files,
                                     [&](const RandomAccessFile& file) {
                                       return FormOf(options_.format, file);
                                     }));
  token_count_ = tokens_->unit_count();
  if (options_.mask_files.empty()) return absl::OkStatus();
  if (options_.mask_files.size() != options_.files.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.mask_files: expected one for each of data.files, ",
        options_.files.size(), ", got ", options_.mask_files.size()));
  }
  ASSIGN_OR_RETURN(mask_,
                   JoinedFiles::Open("data.mask_files", options_.mask_files,
                                     [](const RandomAccessFile&) {
                                       return FileForm{.unit_bytes = 1};
                                     }));
  for (int i = 0; i < mask_->file_count(); ++i) {
    const int64_t tokens = tokens_->byte_count(i) / tokens_->unit_bytes();
    if (mask_->byte_count(i) != tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.mask_files: ", mask_->path(i), ": has ",
                       mask_->byte_count(i), " bytes; expected ", tokens,
                       ", one for each token of ", tokens_->path(i)));
    }
  }
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
        " in ", tokens_->file_count(), " file(s), ", held_out,
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

absl::Status TokenSource::OutsideVocabulary(int64_t joined_byte,
                                            uint32_t token) const {
  return absl::InvalidArgumentError(
      absl::StrCat(tokens_->PlaceOf(joined_byte), ": token ", token,
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
  RETURN_IF_ERROR(tokens_->Read(first_token * kWidth, n * kWidth, raw));
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

absl::Status TokenSource::ConvertTokens(int64_t first_token,
                                        int32_t* tokens) const {
  switch (tokens_->unit_bytes()) {
    case 1:
      return Convert<1>(first_token, tokens);
    case 2:
      return Convert<2>(first_token, tokens);
    default:
      return Convert<4>(first_token, tokens);
  }
}

absl::Status TokenSource::CheckMask(int64_t first, int64_t count,
                                    const unsigned char* mask) const {
  for (int64_t i = 0; i < count; ++i) {
    if (mask[i] > 1) [[unlikely]] {
      return absl::InvalidArgumentError(
          absl::StrCat(mask_->PlaceOf(first + i), ": ",
                       static_cast<int>(mask[i]), "; expected 0 or 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status TokenSource::ReadTokens(int64_t first_token,
                                     int32_t* tokens) const {
  RETURN_IF_ERROR(ConvertTokens(first_token, tokens));
  if (!mask_.has_value()) return absl::OkStatus();
  std::vector<unsigned char> mask(options_.sequence_length + 1);
  const int64_t n = std::ssize(mask);
  RETURN_IF_ERROR(mask_->Read(first_token, n, mask.data()));
  RETURN_IF_ERROR(CheckMask(first_token, n, mask.data()));
  for (int64_t i = 0; i < n; ++i) {
    if (mask[i] == 0) tokens[i] = ~tokens[i];
  }
  return absl::OkStatus();
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

// Hands over every byte where there are few enough, else blocks evenly spread,
// the first and last bytes among them.
absl::Status TokenSource::ForBlocks(
    const JoinedFiles& files, int64_t begin, int64_t total,
    const std::function<absl::Status(int64_t, int64_t, const unsigned char*)>&
        take) {
  std::vector<unsigned char> block(kBlockBytes);
  const auto read = [&](int64_t start, int64_t byte_count) -> absl::Status {
    RETURN_IF_ERROR(files.Read(begin + start, byte_count, block.data()));
    return take(begin + start, byte_count, block.data());
  };
  if (total <= kFingerprintWholeBytesMax) {
    for (int64_t done = 0; done < total; done += kBlockBytes) {
      RETURN_IF_ERROR(read(done, std::min(kBlockBytes, total - done)));
    }
    return absl::OkStatus();
  }
  // Block k of K starts at k (total - block) / (K - 1), in two parts that
  // cannot overflow, rounded down to a whole unit.
  const int64_t span = total - kBlockBytes;
  for (int64_t k = 0; k < kBlockCount; ++k) {
    const int64_t start = span / (kBlockCount - 1) * k +
                          span % (kBlockCount - 1) * k / (kBlockCount - 1);
    RETURN_IF_ERROR(read(start - start % files.unit_bytes(), kBlockBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenSource::Fingerprint() const {
  Sha256 hash;
  hash.Update("lockstep data 1\n");
  const auto sizes = [&hash](const JoinedFiles& files) {
    hash.UpdateInteger(static_cast<uint64_t>(files.file_count()));
    for (int i = 0; i < files.file_count(); ++i) {
      hash.UpdateInteger(static_cast<uint64_t>(files.byte_count(i)));
    }
  };
  sizes(*tokens_);
  RETURN_IF_ERROR(
      ForBlocks(*tokens_, 0, tokens_->byte_count(),
                [&](int64_t start, int64_t count, const unsigned char* raw) {
                  hash.Update(raw, count);
                  switch (tokens_->unit_bytes()) {
                    case 1:
                      return CheckBlock<1>(start, count, raw);
                    case 2:
                      return CheckBlock<2>(start, count, raw);
                    default:
                      return CheckBlock<4>(start, count, raw);
                  }
                }));
  if (mask_.has_value()) {
    hash.Update("mask\n");
    sizes(*mask_);
    // Of the targets of all training samples and of all held-out ones.
    struct Part {
      const char* name;
      int64_t begin;
      int64_t end;
      bool counts = false;
    };
    const int64_t length = options_.sequence_length;
    Part parts[] = {
        {"training", 1,
         (training_sample_count_ - 1) * options_.stride + length + 1},
        {"held-out", training_token_count_ + 1,
         training_token_count_ + held_out_sample_count_ * length + 1}};
    RETURN_IF_ERROR(ForBlocks(
        *mask_, 0, mask_->byte_count(),
        [&](int64_t start, int64_t count, const unsigned char* raw) {
          hash.Update(raw, count);
          for (Part& part : parts) {
            const int64_t begin = std::max(part.begin - start, int64_t{0});
            const int64_t end = std::min(part.end - start, count);
            part.counts |= begin < end &&
                           std::find(raw + begin, raw + end, 1) != raw + end;
          }
          return CheckMask(start, count, raw);
        }));
    for (const Part& part : parts) {
      // Of larger data not all was seen.
      if (part.counts || part.end <= part.begin ||
          mask_->byte_count() > kFingerprintWholeBytesMax) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "data.mask_files: no token of the ", part.name, " part, tokens ",
          part.begin, " to ", part.end - 1,
          ", counts as a target; expected a byte of 1 for each that does"));
    }
  }
  return hash.HexDigest();
}

absl::StatusOr<std::vector<TokenSource::FileDigest>> TokenSource::FileDigests()
    const {
  std::vector<FileDigest> digests;
  const auto add = [&digests](const JoinedFiles& files,
                              const std::vector<std::string>& paths) {
    int64_t begin = 0;
    for (int i = 0; i < files.file_count(); ++i) {
      Sha256 hash;
      const int64_t byte_count = files.byte_count(i);
      hash.UpdateInteger(static_cast<uint64_t>(byte_count));
      RETURN_IF_ERROR(
          ForBlocks(files, begin, byte_count,
                    [&](int64_t, int64_t count, const unsigned char* raw) {
                      hash.Update(raw, count);
                      return absl::OkStatus();
                    }));
      begin += byte_count;
      digests.push_back({paths[i], hash.HexDigest()});
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(add(*tokens_, options_.files));
  if (mask_.has_value()) RETURN_IF_ERROR(add(*mask_, options_.mask_files));
  return digests;
}

}  // namespace lockstep
