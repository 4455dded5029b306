#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/comm/grid.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/evaluation.h"
#include "pipetrain/train/tokens.h"
#include "pipetrain/train/train_config.h"

namespace pipetrain {

// What the flags and the files they name say, without the schedule.
struct JobInputs {
  TrainConfig config;
  ModelChoice model;
  Grid grid;
  BatchShape batch;
  std::unique_ptr<TokenStream> tokens;
  std::unique_ptr<DataSource> batches;
  std::unique_ptr<TokenStream> validation;  // --validation; null: none. Moves into the evaluation
  BudgetRequest request;                    // stages come with the schedule
  std::string content;                      // checksums of the files
};

// A training run as it is planned: everything that is known before anything is allocated on a
// device. All ranks make the same job, but for grid.rank, budget and notes.
struct Job : JobInputs {
  schedule::Schedule schedule;
  schedule::LoweredSchedule lowered;
  schedule::Simulation planned;          // at the profile's times, else F = B = W = 1 per share
  std::optional<schedule::Costs> costs;  // the profile's times, milliseconds
  std::vector<std::string> warnings;
  std::vector<std::string> notes;        // for the log; on rank 0 also of profile and plan
  std::optional<Evaluation> evaluation;  // --validation; on the channels of `lowered`
  Budget budget;                         // of this rank

  // The list whose channels serve all lists of the job.
  const schedule::LoweredSchedule& exchanged() const {
    return evaluation ? evaluation->lowered : lowered;
  }
  // What ranks must have in common beside the flags: what is in the files, the model, the schedule.
  std::string fingerprint() const;
};

// Reads what the flags name. Throws UsageError naming the flag.
JobInputs read_inputs(const TrainConfig& config, int ranks, int rank);
// The schedule of a name that needs no profile. Throws UsageError naming the flag.
schedule::Schedule make_schedule(const TrainConfig& config, const Grid& grid);
// What follows from when the schedule changes the weights: pipedream, whose stages are updated one
// by one, has a head of its own and nothing to clip by. Throws UsageError naming the flag that asks
// for what it cannot do.
void adopt_updates(JobInputs* inputs, const schedule::Schedule& schedule);
// The run with this schedule and these stages. costs: where they were profiled.
Job make_job(JobInputs inputs, schedule::Schedule schedule, std::vector<StageLayers> stages,
             const std::optional<schedule::Costs>& costs = std::nullopt);

// Plans the run for `rank` of `ranks`. Throws UsageError naming the flag, also where planning takes
// a profile.
Job make_job(const TrainConfig& config, int ranks, int rank);

// The same, with a profile where the flags ask for one (--schedule auto, --balance measured), on
// this rank's device, which becomes the current one. Rank 0 plans, and its plan is run by all.
// Collective; every error is thrown on all ranks. Throws DoesNotFit with the budget where the
// profile or the job exceed --memory-limit or what the device has free. `watchdog` may be null.
Job plan_job(const TrainConfig& config, Control& control, Watchdog* watchdog);

// The ranks and chunks of --schedule, whatever the number of micro-batches. Throws UsageError
// naming the flag.
schedule::Placement placement_of(const TrainConfig& config, const Grid& grid);

// Throws DoesNotFit with the budget when it exceeds --memory-limit (GiB) or `free_bytes` of the
// device.
void require_fit(const Budget& budget, const std::optional<double>& memory_limit,
                 size_t free_bytes);

}  // namespace pipetrain
