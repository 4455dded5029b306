// dualpipe (DeepSeek-V3 2024) and dualpipe-v (its half on a V placement, Qi 2025): forwards of one
// half of the work overlap with backwards of the other.

#include <fmt/format.h>

#include <deque>

#include "pipetrain/error.h"
#include "schedule/generators.h"

namespace pipetrain::schedule {

namespace {

// One rank's list. The work has two halves, 0 and 1: for dualpipe the two directions, for
// dualpipe-v the two chunks.
class DualWriter {
 public:
  struct Half {
    int stage = 0;
    int first = 0;  // micro-batch
    int forwards = 0;
    int backwards = 0;
  };

  DualWriter(std::vector<Action>& list, Half zero, Half one) : list_(list), halves_{zero, one} {}

  void forward(int half) { list_.push_back(next_forward(half)); }

  void backward(int half, bool split) {
    list_.push_back(next_backward(half, split ? Kind::backward_input : Kind::backward));
    if (split) {
      weights_.push_back({Kind::backward_weight, list_.back().stage, list_.back().microbatch});
    }
  }

  // The oldest pending weight gradient of either half.
  void weight() {
    list_.push_back(weights_.front());
    weights_.pop_front();
  }

  // F of one half beside the whole backward of the other.
  void pair(int forward_half, bool overlapped) {
    list_.push_back(next_forward(forward_half));
    list_.back().overlaps_next = overlapped;
    list_.push_back(next_backward(1 - forward_half, Kind::backward));
  }

 private:
  Action next_forward(int half) {
    Half& h = halves_[half];
    return {Kind::forward, h.stage, h.first + h.forwards++};
  }
  Action next_backward(int half, Kind kind) {
    Half& h = halves_[half];
    return {kind, h.stage, h.first + h.backwards++};
  }

  std::vector<Action>& list_;
  Half halves_[2];
  std::deque<Action> weights_;
};

// The steps of both schedules. `place` counts ranks from the end where half 0 enters, `places`
// ranks lead to where the halves meet, `pairs` pairs of overlapped pairs stand in the middle.
void write_dual(DualWriter& list, int place, int places, int pairs) {
  const int q = place;
  const int outer = places - 1 - q;
  for (int i = 0; i < 2 * outer; ++i) {
    list.forward(0);
  }
  for (int i = 0; i < q + 1; ++i) {
    list.forward(0);
    list.forward(1);
  }
  for (int i = 0; i < outer; ++i) {
    list.backward(1, true);
    list.weight();
    list.forward(1);
  }
  for (int i = 0; i < pairs; ++i) {
    list.pair(0, i > 0 || outer > 0);
    list.pair(1, true);
  }
  for (int i = 0; i < outer; ++i) {
    list.backward(1, false);
    list.pair(1, true);
  }
  const int split_from = (q + 1) / 2;
  for (int i = 0; i <= q; ++i) {
    const bool split_zero = i >= split_from;
    const bool split_one = q % 2 == 1 ? split_zero : i > split_from;
    list.backward(1, split_one);
    list.backward(0, split_zero);
  }
  for (int i = 0; i < outer; ++i) {
    list.weight();
    list.backward(0, true);
  }
  for (int i = 0; i < q + 1; ++i) {
    list.weight();
  }
}

void require_enough(const Request& request) {
  const int p = request.ranks;
  if (request.microbatches < 2 * p) {
    throw UsageError(
        fmt::format("--microbatches is {}; --schedule {} needs at least twice --ranks, {}",
                    request.microbatches, request.name, 2 * p));
  }
}

}  // namespace

// Half of the micro-batches enter at rank 0, the other half at rank p-1; the two copies of a stage
// are summed at the end of the step.
Schedule generate_dualpipe(const Request& request) {
  const int p = request.ranks;
  const int m = request.microbatches;
  Schedule schedule{request.name, Placement(Placement::Kind::mirrored, p, 1, m), {}};
  require_enough(request);
  for (int rank = 0; rank < p; ++rank) {
    const bool low = rank < p / 2;
    const int place = low ? rank : p - 1 - rank;
    DualWriter list(schedule.ranks.emplace_back(), {place, low ? 0 : m / 2},
                    {p - 1 - place, low ? m / 2 : 0});
    write_dual(list, place, p / 2, m / 2 - p + place + 1);
  }
  return schedule;
}

// Every micro-batch goes down the first chunks and up the second ones.
Schedule generate_dualpipe_v(const Request& request) {
  const int p = request.ranks;
  const int m = request.microbatches;
  require_enough(request);
  Schedule schedule{request.name, Placement(Placement::Kind::v, p, 2, m), {}};
  for (int rank = 0; rank < p; ++rank) {
    DualWriter list(schedule.ranks.emplace_back(), {rank, 0}, {2 * p - 1 - rank, 0});
    write_dual(list, rank, p, m - 2 * p + rank + 1);
  }
  return schedule;
}

}  // namespace pipetrain::schedule
