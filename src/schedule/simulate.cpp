#include "pipetrain/schedule/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "pipetrain/error.h"
#include "schedule/account.h"
#include "schedule/walk.h"

namespace pipetrain::schedule {

double covered_time(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  double covered = 0;
  double end = -std::numeric_limits<double>::infinity();
  for (const Interval& interval : intervals) {
    covered += std::max(0.0, interval.end - std::max(interval.start, end));
    end = std::max(end, interval.end);
  }
  return covered;
}

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  const Placement& placement = schedule.placement;
  const Durations durations(costs, placement);
  const int ranks = placement.ranks();
  const int stages = placement.stages();
  const size_t microbatches = placement.microbatches();

  Simulation result;
  result.ranks.resize(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    result.ranks[rank].intervals.reserve(schedule.ranks[rank].size());
  }
  std::vector<double> free(ranks, 0);
  std::vector<double> forward_end(stages * microbatches);
  std::vector<double> backward_end(stages * microbatches);

  // When the result of `stage` has reached `rank`; a rank's own results come in list order.
  const auto arrival = [&](const std::vector<double>& end, int stage, int microbatch, int rank) {
    return placement.owner(stage, microbatch) == rank
               ? 0
               : end[stage * microbatches + microbatch] + costs.latency;
  };
  const auto visit = [&](int rank, int position, int entries) {
    const Action* first = &schedule.ranks[rank][position];
    double start = free[rank];
    for (const Action* action = first; action != first + entries; ++action) {
      const auto [kind, stage, microbatch, overlaps] = *action;
      if (kind == Kind::forward && stage > 0) {
        start = std::max(start, arrival(forward_end, stage - 1, microbatch, rank));
      } else if (is_backward(kind) && stage + 1 < stages) {
        start = std::max(start, arrival(backward_end, stage + 1, microbatch, rank));
      }
    }
    const double duration = durations.of(rank, first, entries);
    const double end = start + duration;
    free[rank] = end;
    result.ranks[rank].busy += duration;
    for (const Action* action = first; action != first + entries; ++action) {
      const size_t at = action->stage * microbatches + action->microbatch;
      if (action->kind == Kind::forward) {
        forward_end[at] = end;
      } else if (is_backward(action->kind)) {
        backward_end[at] = end;
      }
      result.ranks[rank].intervals.push_back({*action, start, end});
    }
  };
  const std::vector<Wait> waits = walk(schedule, visit);
  if (!waits.empty()) {
    throw InternalError(
        fmt::format("{}: the lists deadlock: {}", schedule.name, describe_deadlock(waits)));
  }
  account(result, placement, schedule.update, durations, costs.weight_memory, free);
  return result;
}

}  // namespace pipetrain::schedule
