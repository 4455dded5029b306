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
      : placement_(placement),
        held_(held),
        by_span_(by_span),
        bits_(placement.microbatches() < 4 ? 2 : 3) {}

  // The least objective, in chunk times.
  int optimum() const {
    int length = 3 * placement_.chunks() * placement_.microbatches();
    while (!possible(length)) {
      ++length;
    }
    return length;
  }

 private:
  using State = std::uint64_t;

  int count(State state, int stage, int kind) const {
    return int(state >> (bits_ * (3 * stage + kind))) & ((1 << bits_) - 1);
  }
  State one(int stage, int kind) const { return State(1) << (bits_ * (3 * stage + kind)); }

  // Breadth first over time; a state is dropped as soon as some rank cannot end in time. Rank r's
  // first forward is its first work, at time r. No rank idles while an I or a W is ready: they hold
  // no more memory than before, so done earlier than in any schedule they hinder nothing.
  bool possible(int length) const {
    std::unordered_set<State> states = {0};
    const int last = length + (by_span_ ? placement_.ranks() - 1 : 0);
    for (int time = 0; time < last && !states.empty(); ++time) {
      std::unordered_set<State> next;
      for (const State state : states) {
        if (!is_late(state, length - time)) {
          extend(state, state, 0, time + 1, length, next);
        }
      }
      states = std::move(next);
    }
    return !states.empty();
  }

  // What is left of a stage has to go down to the last stage and up to the first, whose W ends
  // within `time_left`: rank 0 ends first, or when all do.
  bool is_late(State state, int time_left) const {
    const int stages = placement_.stages();
    const int microbatches = placement_.microbatches();
    for (int stage = 0; stage < stages; ++stage) {
      const int forwards = microbatches - count(state, stage, 0);
      const int inputs = microbatches - count(state, stage, 1);
      if ((forwards > 0 && forwards + 2 * stages - stage > time_left) ||
          (inputs > 0 && inputs + stage + 1 > time_left)) {
        return true;
      }
    }
    return false;
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
    bool must_work = false;
    for (int stage = 0; stage < placement_.stages(); ++stage) {
      if (placement_.owner(stage, 0) == rank) {
        must_work |= ready(now, stage, 1) || ready(now, stage, 2);
      }
    }
    if (left <= time_left && !must_work) {
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
  int bits_;  // of a count
};

// Cases of one kind and size: how far the search is from the optimum.
struct Gaps {
  int cases = 0;
  int reached = 0;  // cases with no gap
  double worst = 0;

  void report(const char* what, int ranks, int microbatches) const {
    std::printf("%-5s p=%d m=%d: %2d cases, %2d at the optimum, largest gap %.2f%%\n", what, ranks,
                microbatches, cases, reached, 100 * worst);
  }
};

void compare(Placement::Kind kind, int ranks, int microbatches, int held, Objective objective,
             double effort, Gaps& gaps) {
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
  gaps.worst = std::max(gaps.worst, gap);
  gaps.reached += gap < 1e-9;
  ++gaps.cases;
  if (kind == Placement::Kind::loop) {
    EXPECT_GE(reached, optimum - 1e-9) << "the exhaustive search is wrong";
  }
  EXPECT_LE(gap, 0.03) << "p=" << ranks << " m=" << microbatches << " M=" << held << ": " << reached
                       << " where " << optimum << " is possible";
}

void compare_all(Placement::Kind kind, int ranks, int microbatches, int least_held, int most_held) {
  Gaps gaps;
  for (const Objective objective : {Objective::makespan, Objective::span}) {
    for (int held = least_held; held <= most_held; ++held) {
      compare(kind, ranks, microbatches, held, objective, 1, gaps);
    }
  }
  gaps.report(kind == Placement::Kind::v ? "V" : "loop", ranks, microbatches);
}

TEST(SearchOptimum, IsReachedInTheSmallestCases) {
  Gaps gaps;
  for (const Objective objective : {Objective::makespan, Objective::span}) {
    for (int microbatches = 1; microbatches <= 4; ++microbatches) {
      for (const int held : {1, 2, 3}) {
        compare(Placement::Kind::loop, 2, microbatches, held, objective, 0.1, gaps);
      }
    }
  }
  EXPECT_EQ(gaps.reached, gaps.cases);
}

TEST(SweepSearchOptimum, GapOfOneChunkPerRank) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (int microbatches = 2; microbatches <= 6; ++microbatches) {
      compare_all(Placement::Kind::loop, ranks, microbatches, 1, std::min(2 * ranks, microbatches));
    }
  }
}

TEST(SweepSearchOptimum, GapOfTheVPlacement) {
  for (const auto& [ranks, most] : {std::pair(2, 6), {3, 6}, {4, 3}}) {
    for (int microbatches = 1; microbatches <= most; ++microbatches) {
      compare_all(Placement::Kind::v, ranks, microbatches, 2, 2 * std::min(ranks, microbatches));
    }
  }
}

}  // namespace
}  // namespace pipetrain::schedule
