// What a job file must fulfil, and what it means.
//
// The ranges and defaults are those of the comments in lockstep/v1/job.proto.
#ifndef COMMON_SPEC_H_
#define COMMON_SPEC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/decoder_arrays.h"
#include "common/model_config.h"
#include "lockstep/v1/job.pb.h"

namespace lockstep {

// Returns `spec` with every default filled in and its paths normalised ("//",
// "/./" and a "/" at the end go).  Resolving what was resolved changes nothing.
//
// Fields for which no value says what their default says stay unset: 0 in
// `data.held_out_samples_max` is all, in `schedule.evaluate_every_steps` after
// the last step only.
//
// Errors:
//   InvalidArgument: a field is missing or out of its range, fields contradict
//     each other, the spec has a field that this version does not know, or it
//     asks for what this version cannot run.  Every fault is a line of its own:
//     "path.to.field: expected ..., got ...", in the order of the proto, what
//     cannot run last; past 4,000 bytes the rest is only counted, so that the
//     message fits a gRPC status.
absl::StatusOr<v1::JobSpec> ResolveJobSpec(const v1::JobSpec& spec);

// The rest wants a resolved spec.

// Micro-batches of one optimizer step over all workers; 1 to 2^20.
int64_t MicroBatchesPerStep(const v1::JobSpec& spec);

// Tokens that one optimizer step predicts, over all workers; 1 to 2^40.
int64_t TokensPerStep(const v1::JobSpec& spec);

// Whether the job makes checkpoints.
bool SavesCheckpoints(const v1::JobSpec& spec);

// Whether the spec alone says how many steps there are (not with `epochs`).
bool KnowsMaxSteps(const v1::JobSpec& spec);

// Optimizer steps of the whole job (see ResolveStepCount).
// `training_sample_count` is the number of samples outside the held-out part;
// it is looked at only if KnowsMaxSteps() is false, and then must be positive.
//
// Errors:
//   InvalidArgument: more than kStepCountMax steps.
absl::StatusOr<int64_t> MaxSteps(const v1::JobSpec& spec,
                                 int64_t training_sample_count);

// What a worker that computes with `thread_count` threads trains.
DecoderShape DecoderShapeOf(const v1::JobSpec& spec, int thread_count);

// Of a resolved `model.gpt2`, `model.llama` or `model.sizes`; the last leaves
// at their defaults what is no size.
ModelConfig ToModelConfig(const v1::Gpt2Config& config);
ModelConfig ToModelConfig(const v1::LlamaConfig& config);
ModelConfig ToModelConfig(const v1::ModelSizes& sizes);
v1::ModelSizes ToModelSizes(const ModelConfig& config);

// What of a spec decides what the job's weights become, its data's bytes apart:
// not names, the output's place, checkpoints, or how it is spread over workers.
v1::JobSpec WhatDecidesBits(const v1::JobSpec& spec);

}  // namespace lockstep

#endif  // COMMON_SPEC_H_
