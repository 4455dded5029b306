#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pipetrain/comm/grid.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/tokens.h"
#include "pipetrain/train/train_config.h"

namespace pipetrain {

// A training run as it is planned: everything that is known before anything is allocated on a
// device. All ranks make the same job, but for grid.rank and budget.
struct Job {
  TrainConfig config;
  ModelChoice model;
  Grid grid;
  BatchShape batch;
  std::unique_ptr<TokenStream> tokens;
  std::unique_ptr<DataSource> batches;
  schedule::Schedule schedule;
  schedule::LoweredSchedule lowered;
  schedule::Simulation planned;  // F = B = W = 1 per share
  std::vector<std::string> warnings;
  BudgetRequest request;
  Budget budget;  // of this rank

  // What ranks must have in common: sizes, precision, step, optimizer, the schedule.
  std::string fingerprint() const;
};

// Reads what the flags name and plans the run for `rank` of `ranks`. Throws UsageError naming the
// flag.
Job make_job(const TrainConfig& config, int ranks, int rank);

// Throws DoesNotFit with the budget when it exceeds --memory-limit or `free_bytes` of the device.
void require_fit(const Job& job, size_t free_bytes);

}  // namespace pipetrain
