#pragma once

#include <vector>

#include "pipetrain/schedule/simulate.h"

namespace pipetrain::schedule {

// The time that each kind of computation takes on each rank: Costs divided among the chunks.
class Durations {
 public:
  // Throws UsageError naming the flag for negative times and vectors that fit neither one entry nor
  // one per rank.
  Durations(const Costs& costs, const Placement& placement);

  // F, B, I, W, REDUCE_GRAD or OPTIMIZER_STEP.
  double of(int rank, Kind kind) const { return times_[rank][size_t(kind)]; }

  // The entries [position, position + entries) of a rank's list, which start together.
  double of(int rank, const Action* first, int entries) const;

 private:
  static constexpr size_t kinds = size_t(Kind::optimizer_step) + 1;

  std::vector<std::vector<double>> times_;  // [rank][kind]
  std::vector<double> overlapped_;          // F&B pairs; empty: the sum of the parts
};

}  // namespace pipetrain::schedule
