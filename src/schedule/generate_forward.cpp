// Forward-only schedules: evaluation and generation. No activation is kept.

#include <algorithm>

#include "schedule/generators.h"

namespace pipetrain::schedule {

Schedule forwards_of(const Schedule& schedule) {
  Schedule result{schedule.name, schedule.placement, {}};
  result.forward_only = true;
  for (const std::vector<Action>& list : schedule.ranks) {
    std::vector<Action>& forwards = result.ranks.emplace_back();
    for (Action action : list) {
      if (action.kind == Kind::forward) {
        action.overlaps_next = false;
        forwards.push_back(action);
      }
    }
  }
  return result;
}

// Loop: groups of p micro-batches, in each of them one chunk after the other, so that a micro-batch
// comes around just when its rank is free. V with two chunks: 2(p-r)-1 forwards of the first chunk,
// the time until the first comes back; then one of each. Other placements: chunk by chunk.
Schedule generate_forward_only(const Placement& placement, int microbatches) {
  const bool v = placement.kind() == Placement::Kind::v;
  const int p = placement.ranks();
  const int m = microbatches;
  Schedule result{
      "forward-only",
      Placement(v ? Placement::Kind::v : Placement::Kind::loop, p, placement.chunks(), m),
      {}};
  result.forward_only = true;
  result.ranks.resize(p);
  const auto add = [&](int chunk, int i) {
    for (int rank = 0; rank < p; ++rank) {
      const int place = v && chunk % 2 == 1 ? p - 1 - rank : rank;
      result.ranks[rank].push_back({Kind::forward, chunk * p + place, i});
    }
  };
  if (v && placement.chunks() == 2) {
    for (int rank = 0; rank < p; ++rank) {
      const int lead = std::min(m, 2 * (p - rank) - 1);
      for (int i = 0; i < lead; ++i) {
        result.ranks[rank].push_back({Kind::forward, rank, i});
      }
      for (int i = 0; i < m; ++i) {
        result.ranks[rank].push_back({Kind::forward, 2 * p - 1 - rank, i});
        if (lead + i < m) {
          result.ranks[rank].push_back({Kind::forward, rank, lead + i});
        }
      }
    }
    return result;
  }
  const int group = v ? m : std::min(p, m);
  for (int first = 0; first < m; first += group) {
    for (int chunk = 0; chunk < placement.chunks(); ++chunk) {
      for (int i = first; i < std::min(first + group, m); ++i) {
        add(chunk, i);
      }
    }
  }
  return result;
}

}  // namespace pipetrain::schedule
