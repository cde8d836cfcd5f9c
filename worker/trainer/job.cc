#include "worker/trainer/job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/spec.h"
#include "common/spec_digest.h"
#include "common/status.h"
#include "worker/checkpoint/initial_weights.h"
#include "worker/trainer/failure.h"

namespace lockstep {
namespace {

TokenFormat FormatOf(v1::DataSpec::Format format) {
  switch (format) {
    case v1::DataSpec::TOKENS_U16:
      return TokenFormat::kTokensU16;
    case v1::DataSpec::TOKENS_U32:
      return TokenFormat::kTokensU32;
    case v1::DataSpec::LLM_C:
      return TokenFormat::kLlmc;
    default:
      return TokenFormat::kBytes;
  }
}

Decay DecayOf(v1::ScheduleSpec::Decay decay) {
  switch (decay) {
    case v1::ScheduleSpec::CONSTANT:
      return Decay::kConstant;
    case v1::ScheduleSpec::LINEAR:
      return Decay::kLinear;
    default:
      return Decay::kCosine;
  }
}

}  // namespace

absl::StatusOr<OpenedJob> OpenedJob::Open(const std::string& serialized) {
  auto open = [&]() -> absl::StatusOr<OpenedJob> {
    OpenedJob job;
    if (!job.spec_.ParseFromString(serialized)) {
      return absl::InvalidArgumentError("the job's spec does not parse");
    }
    const v1::JobSpec& spec = job.spec_;
    job.spec_digest_ = SpecDigest(WhatDecidesBits(spec));

    if (spec.model().has_gpt2()) {
      job.model_ = ToModelConfig(spec.model().gpt2());
    } else if (spec.model().has_llama()) {
      job.model_ = ToModelConfig(spec.model().llama());
    } else if (spec.model().has_checkpoint()) {
      ASSIGN_OR_RETURN(job.start_,
                       Checkpoint::Open(spec.model().checkpoint().folder()));
      RETURN_IF_ERROR(job.start_->Verify());
      job.model_ = job.start_->info().model;
      job.source_folder_ = job.start_->source_folder();
    } else {
      job.source_folder_ = spec.model().hugging_face_folder();
      ASSIGN_OR_RETURN(job.source_, HuggingFaceModel::Open(job.source_folder_));
      job.model_ = job.source_->config();
    }
    RETURN_IF_ERROR(ValidateModelConfig(job.model_));
    if (spec.model().has_sizes()) {
      const v1::ModelSizes sizes = ToModelSizes(job.model_);
      if (spec.model().sizes().SerializeAsString() !=
          sizes.SerializeAsString()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "model.sizes: expected what the model's folder has, ",
            sizes.ShortDebugString(), ", got ",
            spec.model().sizes().ShortDebugString(),
            "; the folder has changed since the job was submitted, or is not "
            "the same where it was"));
      }
    }
    job.layout_ = MakeLayout(job.model_);

    const v1::DataSpec& data = spec.data();
    if (data.sequence_length() > job.model_.position_max) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.sequence_length: expected at most the model's longest, ",
          job.model_.position_max, ", got ", data.sequence_length()));
    }
    TokenSourceOptions options;
    options.files.assign(data.files().begin(), data.files().end());
    options.format = FormatOf(data.format());
    options.mask_files.assign(data.mask_files().begin(),
                              data.mask_files().end());
    options.vocabulary = job.model_.vocabulary;
    options.sequence_length = data.sequence_length();
    options.stride = data.stride();
    options.held_out_fraction = data.held_out_fraction();
    options.held_out_samples_max = data.held_out_samples_max();
    ASSIGN_OR_RETURN(job.tokens_, TokenSource::Open(std::move(options)));
    ASSIGN_OR_RETURN(job.data_digest_, job.tokens_->Fingerprint());

    const v1::ScheduleSpec& schedule = spec.schedule();
    ASSIGN_OR_RETURN(const int64_t max_steps,
                     MaxSteps(spec, job.tokens_->training_sample_count()));
    job.schedule_ = {
        .peak = schedule.peak_learning_rate(),
        .minimum = schedule.min_learning_rate(),
        .decay = DecayOf(schedule.decay()),
        .warmup_steps = schedule.warmup_steps(),
        .max_steps = max_steps,
    };
    job.order_ = data.order() == v1::DataSpec::SEQUENTIAL
                     ? SampleOrder::kSequential
                     : SampleOrder::kPermuted;
    return job;
  };
  absl::StatusOr<OpenedJob> job = open();
  if (!job.ok()) return CausedBy(Failure::Cause::kJob, job.status());
  return job;
}

int64_t OpenedJob::micro_batch_count() const {
  return MicroBatchesPerStep(spec_);
}

bool OpenedJob::EvaluatesAfter(int64_t step) const {
  if (tokens_->held_out_sample_count() == 0) return false;
  const int64_t every = spec_.schedule().evaluate_every_steps();
  return step + 1 == max_steps() || (every > 0 && (step + 1) % every == 0);
}

absl::Status OpenedJob::LoadUnit(int unit, float* values) const {
  if (source_.has_value()) {
    return CausedBy(Failure::Cause::kJob, source_->ReadUnit(unit, values));
  }
  if (start_.has_value()) {
    return CausedBy(Failure::Cause::kJob, start_->ReadUnit(unit, values));
  }
  InitializeUnit(model_, layout_, spec_.numerics().seed(), unit, values);
  return absl::OkStatus();
}

}  // namespace lockstep
