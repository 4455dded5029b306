#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain::schedule {

// What a step costs: makespan where all ranks wait for the slowest (a synchronous optimizer), span
// where every rank may start its next step by itself.
enum class Objective { makespan, span };

struct SearchRequest {
  int ranks = 1;
  int microbatches = 1;
  Costs costs;  // weight_memory included; overlapped is not used
  // In rank shares, one entry per rank or one for all; empty: no limit.
  std::vector<double> activation_limit = {};
  Objective objective = Objective::makespan;
  int min_chunks = 1;    // loop placements with min_chunks..max_chunks chunks per rank; none where
  int max_chunks = 1;    // min_chunks is larger
  bool allow_v = false;  // the V placement with two chunks per rank
  // The best of what is found is that whose lowered form (lower.h) takes least, with its messages,
  // gates and slots; what a message takes is costs.latency and costs.transfer.
  bool lowered = false;
  double effort = 1;  // scales the numbers of trials, which depend on the size else
};

struct SearchResult {
  Schedule schedule;
  Simulation simulation;  // of the lowered form where that was asked for
  std::string origin;     // how it was found: "list scheduling", "zb-v and moves", ...
};

// The schedules of generate() with this placement that update the weights once per step.
std::vector<Schedule> fixed_schedules(const Placement& placement);

// Searches a schedule for the given times, none of whose ranks ever holds more than the limit. The
// result is the same on every machine: fixed numbers of trials and fixed seeds. Never worse than
// the fixed schedules of generate() that fit and use an allowed placement. Weight gradients of a
// stage ascend in micro-batch. Throws UsageError for bad counts or times, DoesNotFit naming
// --activation-limit where no schedule meets the limit.
SearchResult search(const SearchRequest& request);

}  // namespace pipetrain::schedule
