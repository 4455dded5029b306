// Zero-bubble schedules: the backward is split, and weight gradients fill the bubble. zb-h1, zb-h2
// (Qi et al. 2023) and zb-v (Qi et al. 2024).

#include <algorithm>

#include "schedule/generators.h"

namespace pipetrain::schedule {

namespace {

// A rank's list, written by naming the next action of a chunk: the micro-batch is counted here.
// Entries beyond the last micro-batch are dropped.
class ListWriter {
 public:
  ListWriter(std::vector<Action>& list, int stage, int microbatches)
      : list_(list), stage_(stage), microbatches_(microbatches) {}

  void add(Kind kind) {
    const int microbatch = done_[size_t(kind)]++;
    if (microbatch < microbatches_) {
      list_.push_back({kind, stage_, microbatch});
    }
  }
  int count(Kind kind) const { return done_[size_t(kind)]; }
  int pending_weights() const { return count(Kind::backward_input) - count(Kind::backward_weight); }

 private:
  std::vector<Action>& list_;
  int stage_;
  int microbatches_;
  int done_[size_t(Kind::optimizer_step) + 1] = {};
};

constexpr Kind F = Kind::forward;
constexpr Kind I = Kind::backward_input;
constexpr Kind W = Kind::backward_weight;

// `warm_up` forwards, then forward and backward in turn. A weight gradient follows a backward
// whenever more than `debt` of them are pending; the rest stand at the end.
void write_split_1f1b(ListWriter& list, int microbatches, int warm_up, int debt) {
  for (int i = 0; i < std::min(warm_up, microbatches); ++i) {
    list.add(F);
  }
  for (int i = 0; i < microbatches; ++i) {
    if (list.count(F) < microbatches) {
      list.add(F);
    }
    list.add(I);
    if (list.pending_weights() > debt) {
      list.add(W);
    }
  }
  while (list.pending_weights() > 0) {
    list.add(W);
  }
}

Schedule generate_split_1f1b(const Request& request, int scale) {
  const int p = request.ranks;
  const int m = request.microbatches;
  Schedule schedule{request.name, Placement(Placement::Kind::loop, p, 1, m), {}};
  for (int rank = 0; rank < p; ++rank) {
    ListWriter list(schedule.ranks.emplace_back(), rank, m);
    write_split_1f1b(list, m, scale * (p - 1 - rank), scale * rank);
  }
  return schedule;
}

}  // namespace

// The order and the memory of 1f1b: rank r delays r weight gradients.
Schedule generate_zb_h1(const Request& request) {
  return generate_split_1f1b(request, 1);
}

// Twice the warm-up of 1f1b and twice the delay: no bubble but at the ends of the step.
Schedule generate_zb_h2(const Request& request) {
  return generate_split_1f1b(request, 2);
}

// Rank r holds stages r (a) and 2p-1-r (b); at equal times no rank idles between its first and last
// computation, with the memory of 1f1b.
Schedule generate_zb_v(const Request& request) {
  const int p = request.ranks;
  const int m = request.microbatches;
  const int n = std::max(2 * p - 1, m);
  Schedule schedule{request.name, Placement(Placement::Kind::v, p, 2, m), {}};
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& list = schedule.ranks.emplace_back();
    ListWriter a(list, rank, m);
    ListWriter b(list, 2 * p - 1 - rank, m);
    const auto repeat = [](int times, auto&& body) {
      for (int i = 0; i < times; ++i) {
        body();
      }
    };
    const auto b_through = [&] {
      b.add(F);
      b.add(I);
      b.add(W);
    };
    repeat(2 * (p - rank) - 1, [&] { a.add(F); });
    repeat(rank, [&] {
      b.add(F);
      a.add(F);
    });
    repeat(p - rank, b_through);
    while (b.count(F) < a.count(F) || a.count(F) < n) {
      if (a.count(F) < n) {
        a.add(F);
      }
      a.add(I);
      a.add(W);
      b_through();
    }
    repeat(rank, [&] {
      a.add(I);
      b.add(I);
    });
    repeat(p - rank, [&] {
      a.add(I);
      a.add(W);
    });
    repeat(b.pending_weights(), [&] { b.add(W); });
    repeat(a.pending_weights(), [&] { a.add(W); });
  }
  return schedule;
}

}  // namespace pipetrain::schedule
