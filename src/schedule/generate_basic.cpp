// gpipe (Huang et al. 2019) and 1f1b (Narayanan et al. 2019, "PipeDream-Flush").

#include <algorithm>

#include "schedule/generators.h"

namespace pipetrain::schedule {

// All forwards, then all backwards, micro-batches ascending in both.
Schedule generate_gpipe(const Request& request) {
  const auto [name, p, m, chunks, group] = request;
  Schedule schedule{name, Placement(Placement::Kind::loop, p, 1, m), {}};
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& list = schedule.ranks.emplace_back();
    for (int i = 0; i < m; ++i) {
      list.push_back({Kind::forward, rank, i});
    }
    for (int i = 0; i < m; ++i) {
      list.push_back({Kind::backward, rank, i});
    }
  }
  return schedule;
}

// Warm-up: p-1-r forwards. Steady: one forward, one backward. Cool-down: the other backwards.
Schedule generate_1f1b(const Request& request) {
  const auto [name, p, m, chunks, group] = request;
  Schedule schedule{name, Placement(Placement::Kind::loop, p, 1, m), {}};
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& list = schedule.ranks.emplace_back();
    const int warm_up = std::min(p - 1 - rank, m);
    for (int i = 0; i < warm_up; ++i) {
      list.push_back({Kind::forward, rank, i});
    }
    for (int i = 0; i < m; ++i) {
      if (warm_up + i < m) {
        list.push_back({Kind::forward, rank, warm_up + i});
      }
      list.push_back({Kind::backward, rank, i});
    }
  }
  return schedule;
}

}  // namespace pipetrain::schedule
