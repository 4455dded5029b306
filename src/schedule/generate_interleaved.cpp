// Several chunks per rank on a loop placement: interleaved (Megatron-LM, Narayanan et al. 2021) and
// looped-bfs (Lamy-Poirier 2023).

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pipetrain/error.h"
#include "pipetrain/schedule/simulate.h"
#include "schedule/generators.h"
#include "schedule/walk.h"

namespace pipetrain::schedule {

namespace {

struct Step {
  int chunk = 0;
  int microbatch = 0;
};

// The order in which every rank runs its forwards: groups of N micro-batches, in each of them one
// chunk after the other.
std::vector<Step> order_table(int m, int chunks, int group) {
  std::vector<Step> table;
  for (int first = 0; first < m; first += group) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = first; i < std::min(first + group, m); ++i) {
        table.push_back({chunk, i});
      }
    }
  }
  return table;
}

// Groups whose last one is full, or has at least p micro-batches, always finish and reach the
// bubble of (p-1)(F+B+W)/v. Others are simulated: what deadlocks is refused, what is slow warned
// of.
void check_group(Schedule& schedule, const Request& request, int group) {
  const int p = request.ranks;
  const int m = request.microbatches;
  const int chunks = request.chunks;
  if (group >= p && (m % group == 0 || m % group >= p)) {
    return;
  }
  int legal = std::min(p, m);
  while (legal < m && m % legal != 0 && m % legal < p) {
    ++legal;
  }
  const std::vector<Wait> waits = walk(schedule, [](int, int, int) {});
  if (!waits.empty()) {
    throw UsageError(
        fmt::format("--schedule interleaved with --ranks {}, --chunks {}, --group {} and "
                    "--microbatches {} deadlocks ({}); --group {} does not",
                    p, chunks, group, m, describe_deadlock(waits), legal));
  }
  const Simulation simulation = simulate(schedule, Costs{});
  const double bubble = simulation.makespan - simulation.ideal;
  const double reachable = 3.0 * (p - 1) / chunks;
  if (m >= p && bubble > reachable * (1 + 1e-9)) {
    schedule.warnings.push_back(fmt::format(
        "--group {} with --ranks {} and --microbatches {}: the bubble is {:.3g} times that of "
        "--group {}",
        group, p, m, bubble / reachable, legal));
  }
}

}  // namespace

// Forward k runs table[k]; backward k the same micro-batch with the chunks counted from the end.
// Warm-up: 2(p-1-r) + (v-1)N forwards; then one forward, one backward.
Schedule generate_interleaved(const Request& request) {
  const int p = request.ranks;
  const int m = request.microbatches;
  const int chunks = request.chunks;
  const int group = request.group == 0 ? std::min(p, m) : request.group;
  if (group < 1 || group > m) {
    throw UsageError(
        fmt::format("--group is {}; it must be between 1 and --microbatches {}", group, m));
  }
  Schedule schedule{request.name, Placement(Placement::Kind::loop, p, chunks, m), {}};
  const std::vector<Step> table = order_table(m, chunks, group);
  const int total = int(table.size());
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& list = schedule.ranks.emplace_back();
    const auto forward = [&](int k) {
      list.push_back({Kind::forward, table[k].chunk * p + rank, table[k].microbatch});
    };
    const auto backward = [&](int k) {
      list.push_back(
          {Kind::backward, (chunks - 1 - table[k].chunk) * p + rank, table[k].microbatch});
    };
    const int warm_up = std::min(2 * (p - 1 - rank) + (chunks - 1) * group, total);
    for (int k = 0; k < warm_up; ++k) {
      forward(k);
    }
    for (int k = 0; k < total; ++k) {
      if (warm_up + k < total) {
        forward(warm_up + k);
      }
      backward(k);
    }
  }
  check_group(schedule, request, group);
  return schedule;
}

// Breadth first: every chunk runs all its micro-batches before the next chunk starts.
Schedule generate_looped_bfs(const Request& request) {
  const int p = request.ranks;
  const int m = request.microbatches;
  const int chunks = request.chunks;
  Schedule schedule{request.name, Placement(Placement::Kind::loop, p, chunks, m), {}};
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& list = schedule.ranks.emplace_back();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = 0; i < m; ++i) {
        list.push_back({Kind::forward, chunk * p + rank, i});
      }
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < m; ++i) {
        list.push_back({Kind::backward, chunk * p + rank, i});
      }
    }
  }
  return schedule;
}

}  // namespace pipetrain::schedule
