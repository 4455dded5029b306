// gpipe (Huang et al. 2019), 1f1b (PipeDream-Flush) and the asynchronous schedules with the order
// of 1f1b: pipedream (Narayanan et al. 2019), pipedream-2bw (Narayanan et al. 2021).

#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/error.h"
#include "schedule/generators.h"

namespace pipetrain::schedule {

// All forwards, then all backwards, micro-batches ascending in both.
Schedule generate_gpipe(const Request& request) {
  const int p = request.ranks;
  const int m = request.microbatches;
  Schedule schedule{request.name, Placement(Placement::Kind::loop, p, 1, m), {}};
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
  const int p = request.ranks;
  const int m = request.microbatches;
  Schedule schedule{request.name, Placement(Placement::Kind::loop, p, 1, m), {}};
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

// The order of 1f1b; a stage is updated after each of its backwards.
Schedule generate_pipedream(const Request& request) {
  Schedule schedule = generate_1f1b(request);
  schedule.update = Update::every_backward;
  return schedule;
}

// The order of 1f1b; gradients of m >= p micro-batches are added and applied with a delay of one.
Schedule generate_pipedream_2bw(const Request& request) {
  if (request.microbatches < request.ranks) {
    throw UsageError(fmt::format(
        "--microbatches is {}; --schedule pipedream-2bw needs at least --ranks {}, or two weight "
        "versions are not enough",
        request.microbatches, request.ranks));
  }
  Schedule schedule = generate_1f1b(request);
  schedule.update = Update::delayed;
  return schedule;
}

}  // namespace pipetrain::schedule
