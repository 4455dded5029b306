#pragma once

#include <cstddef>
#include <string>

#include "pipetrain/comm/control.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/evaluation.h"
#include "pipetrain/train/train_config.h"

namespace pipetrain {

// What evaluate() has found; the same on all ranks but for budget.
struct EvaluationReport {
  EvaluationResult result;
  size_t microbatches = 0;
  size_t tokens = 0;   // in the files; what fills no micro-batch is not evaluated
  Budget budget;       // of this rank
  std::string device;  // cuda or host
};

// Mean loss of the Hugging Face directory `init` on the files `data`, forward only. Of the config
// count also sequence_length, what places the model on ranks (schedule, chunks, data_parallel,
// layers_per_stage), microbatches (at most so many in a pass), microbatch_size, precision,
// memory_limit, timeout and validation_batches. Allocates neither gradients nor moments. Collective
// and with errors like train(); `checkpoint_flag` is what the user calls `init`.
EvaluationReport evaluate(const TrainConfig& config, Control& control,
                          const std::string& checkpoint_flag);

}  // namespace pipetrain
