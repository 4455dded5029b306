#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"
#include "schedule/validate_named.h"

namespace pipetrain::schedule {

// Which computations of a step have been done, and what an action still waits for.
class Progress {
 public:
  explicit Progress(const Placement& placement)
      : stages_(placement.stages()),
        microbatches_(placement.microbatches()),
        forwards_(size_t(stages_) * microbatches_),
        backwards_(forwards_.size()) {}

  void finish(const Action& action) {
    if (action.kind == Kind::forward) {
      forwards_[at(action.stage, action.microbatch)] = 1;
    } else if (is_backward(action.kind)) {
      backwards_[at(action.stage, action.microbatch)] = 1;
    }
  }

  // F(s) needs F(s-1); B(s) and I(s) need F(s) and the backward of s+1; W(s) needs I(s). No
  // dependency is ever dropped.
  std::optional<Action> missing(const Action& action) const {
    const auto [kind, stage, microbatch, overlaps] = action;
    if (kind == Kind::forward) {
      if (stage > 0 && !forwards_[at(stage - 1, microbatch)]) {
        return Action{Kind::forward, stage - 1, microbatch};
      }
    } else if (is_backward(kind)) {
      if (!forwards_[at(stage, microbatch)]) {
        return Action{Kind::forward, stage, microbatch};
      }
      if (stage + 1 < stages_ && !backwards_[at(stage + 1, microbatch)]) {
        return Action{Kind::backward, stage + 1, microbatch};
      }
    } else if (kind == Kind::backward_weight && !backwards_[at(stage, microbatch)]) {
      return Action{Kind::backward_input, stage, microbatch};
    }
    return std::nullopt;
  }

 private:
  size_t at(int stage, int microbatch) const { return size_t(stage) * microbatches_ + microbatch; }

  int stages_;
  int microbatches_;
  std::vector<char> forwards_;
  std::vector<char> backwards_;
};

// A rank that cannot go on: where it stands and what it waits for.
struct Wait {
  int rank = 0;
  int position = 0;
  Action action;
  int needs_rank = 0;
  Action needs;
};

// "rank 0, position 3: 0B0 waits for 1B0 of rank 1; ...": the circle that the waits form, or the
// chain that ends at something missing. `waits` holds at most one entry per rank. `name` gives what
// stands before "waits", else rank and position.
std::string describe_deadlock(const std::vector<Wait>& waits, const EntryName& name = {});

// Number of entries that start together at `position`: 2 for an overlapped pair, else 1.
inline int entries_at(const std::vector<Action>& list, int position) {
  return list[position].overlaps_next && position + 1 < int(list.size()) ? 2 : 1;
}

// Visits every entry of all ranks in an order that respects the dependencies: visit(rank,
// position, entries) with entries = 2 for an overlapped pair. Returns what the ranks wait for when
// their lists deadlock, or nothing. Stages and micro-batches must be in range. O(entries).
template <typename Visit>
std::vector<Wait> walk(const Schedule& schedule, Visit&& visit) {
  const Placement& placement = schedule.placement;
  const int ranks = placement.ranks();
  Progress progress(placement);
  std::vector<int> next(ranks, 0);
  std::vector<char> queued(ranks, 1);
  std::deque<int> queue;
  for (int rank = 0; rank < ranks; ++rank) {
    queue.push_back(rank);
  }
  const auto blocked_by = [&](int rank) {
    const std::vector<Action>& list = schedule.ranks[rank];
    std::optional<Action> missing;
    for (int i = 0; i < entries_at(list, next[rank]) && !missing; ++i) {
      missing = progress.missing(list[next[rank] + i]);
    }
    return missing;
  };
  const auto wake_consumer = [&](const Action& action) {
    const int stage = action.kind == Kind::forward ? action.stage + 1 : action.stage - 1;
    if (action.kind == Kind::backward_weight || stage < 0 || stage >= placement.stages()) {
      return;
    }
    const int rank = placement.owner(stage, action.microbatch);
    if (!queued[rank]) {
      queued[rank] = 1;
      queue.push_back(rank);
    }
  };
  while (!queue.empty()) {
    const int rank = queue.front();
    queue.pop_front();
    const std::vector<Action>& list = schedule.ranks[rank];
    while (next[rank] < int(list.size()) && !blocked_by(rank)) {
      const int entries = entries_at(list, next[rank]);
      visit(rank, next[rank], entries);
      for (int i = 0; i < entries; ++i) {
        progress.finish(list[next[rank] + i]);
        wake_consumer(list[next[rank] + i]);
      }
      next[rank] += entries;
    }
    queued[rank] = 0;
  }

  std::vector<Wait> waits;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Action>& list = schedule.ranks[rank];
    if (next[rank] == int(list.size())) {
      continue;
    }
    const Action needs = *blocked_by(rank);
    const bool first = progress.missing(list[next[rank]]).has_value();
    const int position = next[rank] + (first ? 0 : 1);
    waits.push_back(
        {rank, position, list[position], placement.owner(needs.stage, needs.microbatch), needs});
  }
  return waits;
}

}  // namespace pipetrain::schedule
