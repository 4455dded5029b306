// v-half and v-min (Qi et al. 2024): one pattern of slots per micro-batch, repeated every six
// slots, on a V placement with two chunks.

#include <algorithm>
#include <deque>

#include "schedule/generators.h"
#include "schedule/squeeze.h"

namespace pipetrain::schedule {

namespace {

constexpr int period = 6;  // one slot for each of F, I and W of both chunks

// Start slots on one rank of the first micro-batch's forwards and backwards (a: first chunk).
struct Pattern {
  int forward_a = 0;
  int forward_b = 0;
  int backward_b = 0;
  int backward_a = 0;
};

// The pattern repeated for all micro-batches, sorted by slot, idle slots removed. A weight gradient
// takes the earliest free slot after its backward, first in, first out.
std::vector<Action> unroll(const Pattern& pattern, int rank, int ranks, int microbatches) {
  const int a = rank;
  const int b = 2 * ranks - 1 - rank;
  std::vector<std::pair<int, Action>> slots;
  for (int i = 0; i < microbatches; ++i) {
    const int first = period * i;
    slots.push_back({first + pattern.forward_a, {Kind::forward, a, i}});
    slots.push_back({first + pattern.forward_b, {Kind::forward, b, i}});
    slots.push_back({first + pattern.backward_b, {Kind::backward_input, b, i}});
    slots.push_back({first + pattern.backward_a, {Kind::backward_input, a, i}});
  }
  std::sort(slots.begin(), slots.end());
  std::vector<Action> list;
  std::deque<Action> weights;
  int slot = 0;
  for (const auto& [start, action] : slots) {
    for (; slot < start && !weights.empty(); ++slot) {
      list.push_back(weights.front());
      weights.pop_front();
    }
    list.push_back(action);
    slot = start + 1;
    if (action.kind == Kind::backward_input) {
      weights.push_back({Kind::backward_weight, action.stage, action.microbatch});
    }
  }
  list.insert(list.end(), weights.begin(), weights.end());
  return list;
}

// Fills the idle gaps for the given times, where that helps: on v-min it can hurt.
Schedule squeeze(const Schedule& unrolled, const Costs& costs) {
  const Durations durations(costs, unrolled.placement);
  const auto finish = [&](const Schedule& schedule) {
    return reorder_cool_down(schedule, durations, costs.latency);
  };
  const Schedule plain = finish(unrolled);
  const Schedule filled = finish(fill_gaps(unrolled, durations, costs.latency));
  const bool better = simulate(filled, costs).makespan <= simulate(plain, costs).makespan;
  return better ? filled : plain;
}

template <typename PatternOf>
Schedule generate_from(const Request& request, PatternOf&& pattern_of) {
  const int p = request.ranks;
  const int m = request.microbatches;
  Schedule schedule{request.name, Placement(Placement::Kind::v, p, 2, m), {}};
  for (int rank = 0; rank < p; ++rank) {
    schedule.ranks.push_back(unroll(pattern_of(rank), rank, p, m));
  }
  return squeeze(schedule, request.costs);
}

}  // namespace

// Half of the activations of 1f1b.
Schedule generate_v_half(const Request& request) {
  const int p = request.ranks;
  const int offset = p % 2 == 0 ? 3 : 0;
  return generate_from(request, [&](int rank) {
    return Pattern{2 * rank, 3 * p - 2 - rank, 3 * p + offset + 2 * rank - 1,
                   6 * p + offset - 2 - rank};
  });
}

// A third of the activations of 1f1b.
Schedule generate_v_min(const Request& request) {
  const int p = request.ranks;
  const int offset = p % 3 == 0 ? 2 : 0;
  return generate_from(request, [&](int rank) {
    return Pattern{rank, 2 * p - 1 - rank, 2 * p + offset + rank, 4 * p + offset - 1 - rank};
  });
}

}  // namespace pipetrain::schedule
