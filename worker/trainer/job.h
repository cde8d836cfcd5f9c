// A job's spec, opened: its data, its model, its schedule.
#ifndef WORKER_TRAINER_JOB_H_
#define WORKER_TRAINER_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/layout.h"
#include "common/model_config.h"
#include "common/sample_order.h"
#include "common/schedule.h"
#include "lockstep/v1/job.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/hugging_face.h"
#include "worker/data/token_source.h"

namespace lockstep {

class OpenedJob {
 public:
  // `serialized`: a JobSpec as the coordinator resolved it.
  //
  // Errors, all of them the job's (see failure.h): the spec, the data or the
  // model's folder is wrong; the message names field, file and what to do.
  static absl::StatusOr<OpenedJob> Open(const std::string& serialized);

  const v1::JobSpec& spec() const { return spec_; }
  // Of WhatDecidesBits().
  const std::string& spec_digest() const { return spec_digest_; }
  const ModelConfig& model() const { return model_; }
  const Layout& layout() const { return layout_; }
  const TokenSource& tokens() const { return *tokens_; }
  // 64 hexadecimal digits: see TokenSource::Fingerprint.
  const std::string& data_digest() const { return data_digest_; }

  int64_t max_steps() const { return schedule_.max_steps; }
  const LearningRateSchedule& schedule() const { return schedule_; }
  SampleOrder order() const { return order_; }
  int64_t micro_batch_count() const;  // Of a step, all ranks together.

  // Whether the held-out part is evaluated after `step` was committed.
  bool EvaluatesAfter(int64_t step) const;

  // Fresh weights, or those of the folder or checkpoint, of unit `unit`.
  // values: (unit.range.element_count) host memory.
  absl::Status LoadUnit(int unit, float* values) const;

  // Where the tokenizer's files of the model are; empty if nowhere.
  const std::string& source_folder() const { return source_folder_; }

  // Of another job that this one begins from; null if none.
  const Checkpoint* start_checkpoint() const {
    return start_.has_value() ? &*start_ : nullptr;
  }

 private:
  OpenedJob() = default;

  v1::JobSpec spec_;
  std::string spec_digest_;
  ModelConfig model_;
  Layout layout_;
  std::optional<HuggingFaceModel> source_;
  std::optional<Checkpoint> start_;
  std::string source_folder_;
  std::unique_ptr<TokenSource> tokens_;
  std::string data_digest_;
  LearningRateSchedule schedule_;
  SampleOrder order_ = SampleOrder::kPermuted;
};

}  // namespace lockstep

#endif  // WORKER_TRAINER_JOB_H_
