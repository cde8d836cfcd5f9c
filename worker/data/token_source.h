// The tokens of a job: files joined in order, cut into samples.
//
//   |<------------------ token_count ------------------>|
//   |<----- training part ------>|<--- held-out part -->|
//   [sample 0]
//         [sample 1]                each sequence_length + 1 tokens;
//         |<->| stride              held out: stride is sequence_length
//
// A sample may span files.  Every token that is delivered was checked against
// the vocabulary.  Files must not change while a job runs (see JoinedFiles).
//
// A mask says of each token whether it counts as a target, something to be
// predicted.  One that does not is delivered as its complement, ~token, which
// is negative.
#ifndef WORKER_DATA_TOKEN_SOURCE_H_
#define WORKER_DATA_TOKEN_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/joined_files.h"

namespace lockstep {

// How bytes of the files become tokens.
enum class TokenFormat {
  kBytes,      // Each byte is a token.
  kTokensU16,  // Little-endian, unsigned.
  kTokensU32,  // Little-endian, unsigned; above 2^31 - 1 is in no vocabulary.
  kLlmc,       // llm.c's: a header, then one of the two before.
};

struct TokenSourceOptions {
  std::vector<std::string> files;  // Paths, joined in this order.
  TokenFormat format = TokenFormat::kBytes;
  // As many as `files`, or none: a byte for each token of each file, 1 where it
  // counts as a target, else 0.
  std::vector<std::string> mask_files;
  int64_t vocabulary = 0;       // Tokens are in [0, vocabulary); to 2^31.
  int64_t sequence_length = 0;  // Predicted tokens of a sample; positive.
  int64_t stride = 0;           // Between samples' first tokens; positive.
  // Share of the tokens at the end that is held out, rounded to the nearest
  // whole token: 0 to 0.5.
  double held_out_fraction = 0;
  int64_t held_out_samples_max = 0;  // The first ones; 0: all.
};

// Thread-safe.
class TokenSource {
 public:
  // Up to this many bytes Fingerprint reads all of them.
  static constexpr int64_t kFingerprintWholeBytesMax = int64_t{256} << 20;

  // Opens every file and reads none.
  //
  // Errors (each names the field or the file, what is wrong and what would be
  // right):
  //   InvalidArgument: an option is out of range; a file is not a regular one,
  //     is empty, its header is wrong, or its size is not a multiple of the
  //     token's; a mask does not have a byte for each token; there are too
  //     few tokens for one sample to train on, or, when tokens are held out,
  //     for one to evaluate on.
  //   NotFound, PermissionDenied, ...: a file cannot be opened.
  static absl::StatusOr<std::unique_ptr<TokenSource>> Open(
      TokenSourceOptions options);

  int64_t token_count() const { return token_count_; }
  int64_t training_sample_count() const { return training_sample_count_; }
  int64_t held_out_sample_count() const { return held_out_sample_count_; }
  int64_t sequence_length() const { return options_.sequence_length; }

  // tokens: (sequence_length + 1) of sample `sample`, which must be below
  // training_sample_count().
  //
  // Errors:
  //   InvalidArgument: a token is outside the vocabulary, or a mask's byte is
  //     not 0 or 1; names file, byte offset, value and what was expected.
  //   DataLoss, Unavailable, ...: a file cannot be read, or has changed.
  absl::Status ReadTrainingSample(int64_t sample, int32_t* tokens) const;

  // The same for `sample` below held_out_sample_count().
  absl::Status ReadHeldOutSample(int64_t sample, int32_t* tokens) const;

  // 64 hexadecimal digits by which workers make sure that they see the same
  // data: a SHA-256 of the number of files, their sizes in order, and contents:
  // all bytes when there are at most kFingerprintWholeBytesMax, else 1,024
  // blocks of 64 KiB evenly spread over the joined files, the first and last
  // bytes among them; and the same of the masks.  So it reads at most 256 MiB
  // of each (about a second).  Paths are not covered, nor headers.  Of larger
  // data, files that differ in size or order are always told apart, single
  // bytes that differ outside the blocks are not.
  //
  // Checks what it reads, so that a job on wrong data fails before it starts; a
  // token of larger data is met when it is trained on.
  //
  // Errors: as those of ReadTrainingSample.
  absl::StatusOr<std::string> Fingerprint() const;

  // Of each file, those of tokens first: its path and its own fingerprint, by
  // which one that differs between workers is found.
  //
  // Errors: a file cannot be read.
  struct FileDigest {
    std::string path;
    std::string digest;  // 64 hexadecimal digits.
  };
  absl::StatusOr<std::vector<FileDigest>> FileDigests() const;

 private:
  explicit TokenSource(TokenSourceOptions options)
      : options_(std::move(options)) {}

  absl::Status OpenFiles();
  absl::Status CutSamples();
  absl::Status ReadTokens(int64_t first_token, int32_t* tokens) const;
  absl::Status ConvertTokens(int64_t first_token, int32_t* tokens) const;
  absl::Status OutsideVocabulary(int64_t joined_byte, uint32_t token) const;
  absl::Status CheckMask(int64_t first, int64_t count,
                         const unsigned char* mask) const;
  // Of bytes [begin, begin + total) of the joined files.
  static absl::Status ForBlocks(
      const JoinedFiles& files, int64_t begin, int64_t total,
      const std::function<absl::Status(int64_t, int64_t, const unsigned char*)>&
          take);
  template <int kWidth>
  absl::Status CheckBlock(int64_t joined_byte, int64_t byte_count,
                          const unsigned char* raw) const;
  template <int kWidth>
  absl::Status Convert(int64_t first_token, int32_t* tokens) const;

  TokenSourceOptions options_;
  std::optional<JoinedFiles> tokens_;  // Once open.
  std::optional<JoinedFiles> mask_;    // If there is one.
  int64_t token_count_ = 0;
  int64_t training_token_count_ = 0;
  int64_t training_sample_count_ = 0;
  int64_t held_out_sample_count_ = 0;
};

}  // namespace lockstep

#endif  // WORKER_DATA_TOKEN_SOURCE_H_
