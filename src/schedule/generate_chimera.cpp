// chimera (Li and Hoefler 2021): two 1f1b pipelines in opposite directions fill each other's
// bubbles.

#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/error.h"
#include "schedule/generators.h"

namespace pipetrain::schedule {

// In slots of F = B = 1, a block of p micro-batches stands at fixed slots; blocks follow each other
// every 2p slots and tile exactly. Each rank's list is sorted by slot.
Schedule generate_chimera(const Request& request) {
  const int p = request.ranks;
  const int m = request.microbatches;
  if (p % 2 != 0) {
    throw UsageError(fmt::format("--ranks is {}; --schedule chimera needs an even number", p));
  }
  if (m % p != 0) {
    throw UsageError(fmt::format(
        "--microbatches is {}; --schedule chimera needs a multiple of --ranks {}", m, p));
  }
  Schedule schedule{request.name, Placement(Placement::Kind::mirrored, p, 1, m, p), {}};
  for (int rank = 0; rank < p; ++rank) {
    std::vector<std::pair<int, Action>> slots;
    for (int block = 0; block < m / p; ++block) {
      for (int k = 0; k < p / 2; ++k) {
        const int first = 2 * p * block + 2 * k;
        const int down = p * block + k;
        const int up = down + p / 2;
        const int up_stage = p - 1 - rank;
        slots.push_back({first + rank, {Kind::forward, rank, down}});
        slots.push_back({first + 2 * p - 1 - rank, {Kind::backward, rank, down}});
        slots.push_back({first + p - 1 - rank, {Kind::forward, up_stage, up}});
        slots.push_back({first + p + rank, {Kind::backward, up_stage, up}});
      }
    }
    std::sort(slots.begin(), slots.end());
    std::vector<Action>& list = schedule.ranks.emplace_back();
    for (const auto& [slot, action] : slots) {
      list.push_back(action);
    }
  }
  return schedule;
}

}  // namespace pipetrain::schedule
