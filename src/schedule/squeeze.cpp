#include "schedule/squeeze.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

namespace pipetrain::schedule {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// Below this two times are the same: rounding of sums of durations.
double tolerance_for(const Schedule& schedule, const Durations& durations) {
  double longest = 0;
  for (int rank = 0; rank < int(schedule.ranks.size()); ++rank) {
    for (const Kind kind : {Kind::forward, Kind::backward_input, Kind::backward_weight}) {
      longest = std::max(longest, durations.of(rank, kind));
    }
  }
  return 1e-9 * longest;
}

using Event = std::pair<double, int>;  // time, rank
using Events = std::priority_queue<Event, std::vector<Event>, std::greater<Event>>;

// Ends of the forwards and backwards of a step; `never` until known.
class Ends {
 public:
  explicit Ends(const Placement& placement)
      : placement_(placement),
        forwards_(size_t(placement.stages()) * placement.microbatches(), never),
        backwards_(forwards_) {}

  double get(const Action& action) const {
    return (action.kind == Kind::forward ? forwards_ : backwards_)[at(action)];
  }
  void set(const Action& action, double end) {
    if (action.kind != Kind::backward_weight) {
      (action.kind == Kind::forward ? forwards_ : backwards_)[at(action)] = end;
    }
  }

  // The stage whose output the action takes, if any: the one before for F, the one after for I.
  std::optional<Action> producer(const Action& action) const {
    const int from = action.kind == Kind::forward ? action.stage - 1 : action.stage + 1;
    if (action.kind == Kind::backward_weight || from < 0 || from >= placement_.stages()) {
      return std::nullopt;
    }
    return Action{action.kind, from, action.microbatch};
  }

  // What the action needs of its own stage: F for I, I for W.
  static std::optional<Action> own_producer(const Action& action) {
    if (action.kind == Kind::forward) {
      return std::nullopt;
    }
    const Kind kind = action.kind == Kind::backward_input ? Kind::forward : Kind::backward_input;
    return Action{kind, action.stage, action.microbatch};
  }

 private:
  size_t at(const Action& action) const {
    return size_t(action.stage) * placement_.microbatches() + action.microbatch;
  }

  const Placement& placement_;
  std::vector<double> forwards_;
  std::vector<double> backwards_;
};

// Commits computations by time. When a rank's next computation will start is found by running the
// lists of all ranks ahead of what is committed, as far as needed; a move makes that void.
class GapFiller {
 public:
  GapFiller(const Schedule& schedule, const Durations& durations, double latency)
      : schedule_(schedule),
        durations_(durations),
        latency_(latency),
        tolerance_(tolerance_for(schedule, durations)),
        ends_(schedule_.placement),
        ranks_(schedule.ranks.size()) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const int entries = int(schedule_.ranks[rank].size());
      ranks_[rank].live.assign(entries, 0);
      count_live(int(rank), 0, entries);
      for (const int live : ranks_[rank].live) {
        ranks_[rank].peak = std::max(ranks_[rank].peak, live);
      }
    }
  }

  Schedule run() {
    Events events;
    for (int rank = 0; rank < int(ranks_.size()); ++rank) {
      events.push({0, rank});
    }
    while (!events.empty()) {
      const auto [time, rank] = events.top();
      events.pop();
      RankState& state = ranks_[rank];
      const std::vector<Action>& list = schedule_.ranks[rank];
      if (state.next == int(list.size())) {
        continue;
      }
      const double start = start_of(list[state.next], rank, time);
      if (start > time + tolerance_ && move_into_gap(rank, time, start)) {
        forget_ahead();
      } else {
        run_ahead(rank, state.next);
        state.free = start + durations_.of(rank, list[state.next].kind);
        ++state.next;
      }
      events.push({state.free, rank});
    }
    return std::move(schedule_);
  }

 private:
  struct RankState {
    int next = 0;  // the first entry that is not committed
    double free = 0;
    int ahead_next = 0;  // the same for what is run ahead
    double ahead_free = 0;
    std::vector<int> live;  // chunks held after each entry
    int peak = 0;
  };

  // Memory is held from F to W.
  void count_live(int rank, int first, int last) {
    std::vector<int>& live = ranks_[rank].live;
    int count = first > 0 ? live[first - 1] : 0;
    for (int i = first; i < last; ++i) {
      const Kind kind = schedule_.ranks[rank][i].kind;
      count += (kind == Kind::forward) - (kind == Kind::backward_weight);
      live[i] = count;
    }
  }

  // When the action's inputs are at hand on `rank`, and not before `earliest`.
  double start_of(const Action& action, int rank, double earliest) {
    if (const auto producer = ends_.producer(action)) {
      const bool here = schedule_.placement.owner(producer->stage, producer->microbatch) == rank;
      earliest = std::max(earliest, end_of(*producer) + (here ? 0 : latency_));
    }
    if (const auto producer = Ends::own_producer(action)) {
      earliest = std::max(earliest, end_of(*producer));
    }
    return earliest;
  }

  double end_of(const Action& action) {
    const int rank = schedule_.placement.owner(action.stage, action.microbatch);
    while (ends_.get(action) == never) {
      run_ahead(rank, ranks_[rank].ahead_next);
    }
    return ends_.get(action);
  }

  void run_ahead(int rank, int position) {
    RankState& state = ranks_[rank];
    if (state.ahead_next > position) {
      return;
    }
    const Action& action = schedule_.ranks[rank][state.ahead_next];
    const double start = start_of(action, rank, state.ahead_free);
    state.ahead_free = start + durations_.of(rank, action.kind);
    ends_.set(action, state.ahead_free);
    ++state.ahead_next;
  }

  void forget_ahead() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      RankState& state = ranks_[rank];
      for (int i = state.next; i < state.ahead_next; ++i) {
        ends_.set(schedule_.ranks[rank][i], never);
      }
      state.ahead_next = state.next;
      state.ahead_free = state.free;
    }
  }

  // Looks for a later entry that can run in [time, end); puts it before the rank's next entry.
  bool move_into_gap(int rank, double time, double end) {
    RankState& state = ranks_[rank];
    std::vector<Action>& list = schedule_.ranks[rank];
    std::vector<std::pair<Kind, int>> seen = {{list[state.next].kind, list[state.next].stage}};
    int most_live = state.live[state.next];
    const size_t classes = 3 * size_t(schedule_.placement.chunks());
    for (int i = state.next + 1; i < int(list.size()) && seen.size() < classes; ++i) {
      const Action action = list[i];
      const std::pair own(action.kind, action.stage);
      if (std::find(seen.begin(), seen.end(), own) == seen.end()) {
        seen.push_back(own);
        const bool room = action.kind != Kind::forward || most_live < state.peak;
        // What needs an entry that it would pass starts at `end` or later, however short it is.
        const double start = start_of(action, rank, time);
        if (room && start < end && start + durations_.of(rank, action.kind) <= end + tolerance_) {
          forget_ahead();
          std::rotate(list.begin() + state.next, list.begin() + i, list.begin() + i + 1);
          count_live(rank, state.next, i + 1);
          return true;
        }
      }
      most_live = std::max(most_live, state.live[i]);
    }
    return false;
  }

  Schedule schedule_;
  const Durations& durations_;
  double latency_;
  double tolerance_;
  Ends ends_;
  std::vector<RankState> ranks_;
};

// Runs the lists by time; ranks that have no forward left choose for themselves.
class CoolDown {
 public:
  CoolDown(const Schedule& schedule, const Durations& durations, double latency)
      : schedule_(schedule),
        durations_(durations),
        latency_(latency),
        tolerance_(tolerance_for(schedule, durations)),
        ends_(schedule_.placement),
        left_(schedule.ranks),
        free_(schedule.ranks.size(), 0),
        next_(schedule.ranks.size(), 0),
        last_forward_(schedule.ranks.size(), -1) {
    for (size_t rank = 0; rank < left_.size(); ++rank) {
      for (int i = 0; i < int(left_[rank].size()); ++i) {
        if (left_[rank][i].kind == Kind::forward) {
          last_forward_[rank] = i;
        }
      }
      schedule_.ranks[rank].clear();
    }
  }

  Schedule run() {
    for (int rank = 0; rank < int(left_.size()); ++rank) {
      events_.push({0, rank});
    }
    while (!events_.empty()) {
      const auto [time, rank] = events_.top();
      events_.pop();
      if (free_[rank] > time || next_[rank] == int(left_[rank].size())) {
        continue;
      }
      const int chosen =
          next_[rank] <= last_forward_[rank] ? next_[rank] : choose(rank, time + tolerance_);
      if (chosen < 0) {
        continue;
      }
      const double ready = ready_at(left_[rank][chosen], rank);
      if (ready <= time + tolerance_) {
        start(rank, chosen, time);
      } else if (ready < never) {
        events_.push({ready, rank});
      }
    }
    return std::move(schedule_);
  }

 private:
  double ready_at(const Action& action, int rank) const {
    double ready = 0;
    if (const auto producer = ends_.producer(action)) {
      const bool here = schedule_.placement.owner(producer->stage, producer->microbatch) == rank;
      ready = ends_.get(*producer) + (here ? 0 : latency_);
    }
    if (const auto producer = Ends::own_producer(action)) {
      ready = std::max(ready, ends_.get(*producer));
    }
    return ready;
  }

  // The first backward of a stage that is ready, else the oldest weight gradient, else nothing.
  int choose(int rank, double time) const {
    const std::vector<Action>& list = left_[rank];
    std::vector<int> stages;  // whose next backward has been looked at
    int oldest = -1;
    for (int i = next_[rank]; i < int(list.size()); ++i) {
      const Action& action = list[i];
      if (action.kind == Kind::backward_weight) {
        oldest = oldest < 0 && ready_at(action, rank) <= time ? i : oldest;
      } else if (std::find(stages.begin(), stages.end(), action.stage) == stages.end()) {
        stages.push_back(action.stage);
        if (ready_at(action, rank) <= time) {
          return i;
        }
      }
      if (oldest >= 0 && int(stages.size()) == schedule_.placement.chunks()) {
        break;
      }
    }
    return oldest;
  }

  void start(int rank, int position, double time) {
    std::vector<Action>& list = left_[rank];
    const Action action = list[position];
    std::rotate(list.begin() + next_[rank], list.begin() + position, list.begin() + position + 1);
    ++next_[rank];
    free_[rank] = time + durations_.of(rank, action.kind);
    ends_.set(action, free_[rank]);
    schedule_.ranks[rank].push_back(action);
    events_.push({free_[rank], rank});
    const int to = action.kind == Kind::forward ? action.stage + 1 : action.stage - 1;
    if (action.kind != Kind::backward_weight && to >= 0 && to < schedule_.placement.stages()) {
      const int consumer = schedule_.placement.owner(to, action.microbatch);
      events_.push({free_[rank] + (consumer == rank ? 0 : latency_), consumer});
    }
  }

  Schedule schedule_;
  const Durations& durations_;
  double latency_;
  double tolerance_;
  Ends ends_;
  std::vector<std::vector<Action>> left_;  // entries before next_ have been started
  std::vector<double> free_;
  std::vector<int> next_;
  std::vector<int> last_forward_;  // position
  Events events_;
};

}  // namespace

Schedule fill_gaps(const Schedule& schedule, const Durations& durations, double latency) {
  return GapFiller(schedule, durations, latency).run();
}

Schedule reorder_cool_down(const Schedule& schedule, const Durations& durations, double latency) {
  return CoolDown(schedule, durations, latency).run();
}

}  // namespace pipetrain::schedule
