#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/search.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/profile.h"

namespace pipetrain {

// What a profile is turned into a plan with. Planning is a pure function of this.
struct PlanRequest {
  BudgetRequest budget;  // its stages are not looked at
  int ranks = 1;         // of the pipeline
  int microbatches = 1;
  std::optional<int> chunks;          // auto: at most; 1: one stage per rank only
  std::vector<int> layers_per_stage;  // --layers-per-stage; empty: open
  bool balance = false;               // --balance measured
  Profile profile;
  std::vector<size_t> memory;  // bytes that each pipeline rank may take
  // auto: besides what the memory allows; as in SearchRequest.
  std::vector<double> activation_limit = {};
  schedule::Objective objective = schedule::Objective::makespan;
  std::optional<double> weight_memory = {};  // instead of what the slots hold
  double effort = 1;                         // of the search
};

// A schedule for a partition, and what it was planned with.
struct AutoPlan {
  schedule::Schedule schedule;
  std::vector<StageLayers> stages;
  schedule::Costs costs;
  std::vector<double> activation_limit;  // of the search: rank shares, per pipeline rank
  schedule::Simulation simulation;       // of the lowered schedule
  std::string origin;                    // how the search found it
};

// Milliseconds of every rank's whole share, the link between ranks, and the layout's weight-memory,
// the largest of any rank. A mirrored rank runs each of its two stages for half of the
// micro-batches.
schedule::Costs profiled_costs(const Profile& profile, const BudgetRequest& request,
                               const schedule::Placement& placement);

// The placements that `auto` chooses from: loop with 1, 2, ... chunks per rank up to `chunks`, and
// V unless `chunks` is 1; with --layers-per-stage those that have as many stages. Throws UsageError
// naming the flag where there is none.
std::vector<schedule::Placement> auto_placements(int ranks, int microbatches,
                                                 std::optional<int> chunks,
                                                 const std::vector<int>& layers_per_stage);

// The partition for a given schedule: --layers-per-stage, or balanced by the profile so that every
// rank's budget fits its memory, or as even as possible. Throws DoesNotFit with the budget where no
// balanced partition fits.
std::vector<StageLayers> plan_partition(const PlanRequest& request,
                                        const schedule::LoweredSchedule& schedule);

// Partition and schedule with the shortest step (or span): for every placement one or two
// partitions, then a schedule searched for their times in the memory that is left. The search
// counts what is held together at any time; where the pools, whose peaks need not come together,
// are larger than that, it searches with less, and without split backwards, which need no gradient
// slots. Whole backwards replace I and W wherever the step does not get longer. Throws DoesNotFit
// with the budget.
AutoPlan plan_auto(const PlanRequest& request);

// Lines for people: times, limits and what was chosen.
std::vector<std::string> describe(const Profile& profile);
std::vector<std::string> describe(const AutoPlan& plan);
std::string describe(const std::vector<StageLayers>& stages, const Profile& profile,
                     const schedule::Placement& placement);

}  // namespace pipetrain
