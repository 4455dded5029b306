// Compares the search with the optimum of small cases, found by visiting every state.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <unordered_set>

#include "pipetrain/schedule/search.h"
#include "support.h"

namespace pipetrain::schedule {
namespace {

// F = B = W = 1 per chunk and no latency, so all ranks decide at whole times, and a state is how
// many F, I and W every stage has done. Weight-memory 1: memory is what has its F but not its W.
class Exhaustive {
 public:
  Exhaustive(const Placement& placement, int held, bool by_span)
      : placement_(placement), held_(held), by_span_(by_span) {}

  // The least objective, in chunk times.
  int optimum() const {
    int length = 3 * placement_.chunks() * placement_.microbatches();
    while (!possible(length)) {
      ++length;
    }
    return length;
  }

 private:
  static constexpr int kBits = 3;  // of a count: at most 7 micro-batches
  using State = std::uint64_t;

  static int count(State state, int stage, int kind) {
    return int(state >> (kBits * (3 * stage + kind))) & ((1 << kBits) - 1);
  }
  static State one(int stage, int kind) { return State(1) << (kBits * (3 * stage + kind)); }

  // Breadth first over time; a state is dropped as soon as some rank cannot end in time. Rank r's
  // first forward is its first work, at time r.
  bool possible(int length) const {
    std::unordered_set<State> states = {0};
    const int last = length + (by_span_ ? placement_.ranks() - 1 : 0);
    for (int time = 0; time < last && !states.empty(); ++time) {
      std::unordered_set<State> next;
      for (const State state : states) {
        extend(state, state, 0, time + 1, length, next);
      }
      states = std::move(next);
    }
    return !states.empty();
  }

  void extend(State now, State next, int rank, int time, int length,
              std::unordered_set<State>& found) const {
    if (rank == placement_.ranks()) {
      found.insert(next);
      return;
    }
    int done = 0;
    int holds = 0;
    for (int stage = 0; stage < placement_.stages(); ++stage) {
      if (placement_.owner(stage, 0) == rank) {
        done += count(now, stage, 0) + count(now, stage, 1) + count(now, stage, 2);
        holds += count(now, stage, 0) - count(now, stage, 2);
      }
    }
    const int left = 3 * placement_.chunks() * placement_.microbatches() - done;
    const int time_left = std::max(0, length + (by_span_ ? rank : 0) - time);
    if (left <= time_left) {
      extend(now, next, rank + 1, time, length, found);  // idle
    }
    if (left == 0 || left - 1 > time_left) {
      return;
    }
    for (int stage = 0; stage < placement_.stages(); ++stage) {
      if (placement_.owner(stage, 0) != rank) {
        continue;
      }
      for (int kind = 0; kind < 3; ++kind) {
        if (ready(now, stage, kind) && (kind != 0 || holds < held_)) {
          extend(now, next + one(stage, kind), rank + 1, time, length, found);
        }
      }
    }
  }

  bool ready(State now, int stage, int kind) const {
    const int done = count(now, stage, kind);
    if (kind == 0) {
      return done < (stage == 0 ? placement_.microbatches() : count(now, stage - 1, 0));
    }
    const bool has_own = done < count(now, stage, kind - 1);
    const bool has_next =
        kind == 2 || stage + 1 == placement_.stages() || done < count(now, stage + 1, 1);
    return has_own && has_next;
  }

  Placement placement_;
  int held_;
  bool by_span_;
};

void compare(Placement::Kind kind, int ranks, int microbatches, int held, Objective objective,
             double effort, int& cases, double& worst) {
  const int chunks = kind == Placement::Kind::v ? 2 : 1;
  SearchRequest request;
  request.ranks = ranks;
  request.microbatches = microbatches;
  request.costs = unit_chunks(chunks);
  request.activation_limit = {double(held) / chunks};
  request.objective = objective;
  request.effort = effort;
  request.allow_v = kind == Placement::Kind::v;
  const Simulation found = search(request).simulation;
  const double reached = objective == Objective::span ? found.span : found.makespan;
  const int optimum =
      Exhaustive(Placement(kind, ranks, chunks, microbatches), held, objective == Objective::span)
          .optimum();
  const double gap = reached / optimum - 1;
  worst = std::max(worst, gap);
  ++cases;
  if (kind == Placement::Kind::loop) {
    EXPECT_GE(reached, optimum - 1e-9) << "the exhaustive search is wrong";
  }
  EXPECT_LE(gap, 0.03) << "p=" << ranks << " m=" << microbatches << " M=" << held << ": " << reached
                       << " where " << optimum << " is possible";
}

TEST(SearchOptimum, IsReachedInTheSmallestCases) {
  int cases = 0;
  double worst = 0;
  for (const Objective objective : {Objective::makespan, Objective::span}) {
    for (int microbatches = 1; microbatches <= 4; ++microbatches) {
      for (const int held : {1, 2, 3}) {
        compare(Placement::Kind::loop, 2, microbatches, held, objective, 0.1, cases, worst);
      }
    }
  }
  EXPECT_LE(worst, 1e-9);
}

TEST(SweepSearchOptimum, GapOfOneChunkPerRank) {
  int cases = 0;
  double worst = 0;
  for (const Objective objective : {Objective::makespan, Objective::span}) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      for (int microbatches = 2; microbatches <= (ranks == 4 ? 5 : 6); ++microbatches) {
        for (int held = 1; held <= std::min(2 * ranks, microbatches); ++held) {
          compare(Placement::Kind::loop, ranks, microbatches, held, objective, 1, cases, worst);
        }
      }
    }
  }
  std::printf("%d cases, largest gap %.2f%%\n", cases, 100 * worst);
}

TEST(SweepSearchOptimum, GapOfTheVPlacement) {
  int cases = 0;
  double worst = 0;
  for (const Objective objective : {Objective::makespan, Objective::span}) {
    for (const auto& [ranks, most] : {std::pair(2, 5), {3, 3}}) {
      for (int microbatches = 1; microbatches <= most; ++microbatches) {
        for (int held = 2; held <= 2 * ranks; ++held) {
          compare(Placement::Kind::v, ranks, microbatches, held, objective, 1, cases, worst);
        }
      }
    }
  }
  std::printf("%d cases, largest gap %.2f%%\n", cases, 100 * worst);
}

}  // namespace
}  // namespace pipetrain::schedule
