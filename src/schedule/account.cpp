#include "schedule/account.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "schedule/weight_versions.h"

namespace pipetrain::schedule {

namespace {

void account_memory(RankResult& rank, int chunks, double weight_memory) {
  int live = 0;     // chunks between F and their B or W
  int pending = 0;  // of these: chunks between I and W
  const auto take = [&](Kind kind) {
    live += kind == Kind::forward;
    pending += kind == Kind::backward_input;
  };
  const auto give = [&](Kind kind) {
    live -= kind == Kind::backward || kind == Kind::backward_weight;
    pending -= kind == Kind::backward_weight;
  };
  const auto measure = [&] {
    rank.peak_chunks = std::max(rank.peak_chunks, live);
    rank.peak_activations = std::max(rank.peak_activations,
                                     (live - pending + weight_memory * pending) / double(chunks));
  };
  for (size_t i = 0; i < rank.intervals.size(); ++i) {
    const Action& action = rank.intervals[i].action;
    take(action.kind);
    if (action.overlaps_next && i + 1 < rank.intervals.size()) {
      take(rank.intervals[i + 1].action.kind);
      measure();
      give(action.kind);
      ++i;
      give(rank.intervals[i].action.kind);
      continue;
    }
    measure();
    give(action.kind);
  }
}

}  // namespace

void account(Simulation& simulation, const Placement& placement, Update update,
             const Durations& durations, double weight_memory, const std::vector<double>& end) {
  double first = std::numeric_limits<double>::max();
  double last = 0;
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    RankResult& rank = simulation.ranks[r];
    double counts[size_t(Kind::optimizer_step) + 1] = {};
    for (const Interval& interval : rank.intervals) {
      ++counts[size_t(interval.action.kind)];
    }
    double work = 0;
    for (const Kind kind :
         {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight}) {
      work += counts[size_t(kind)] * durations.of(int(r), kind);
    }
    simulation.ideal = std::max(simulation.ideal, work);
    if (!rank.intervals.empty()) {
      const double start = rank.intervals.front().start;
      first = std::min(first, start);
      last = std::max(last, end[r]);
      simulation.span = std::max(simulation.span, end[r] - start);
    }
    account_memory(rank, placement.chunks(), weight_memory);
    if (update != Update::step) {
      std::vector<Action> list;
      for (const Interval& interval : rank.intervals) {
        list.push_back(interval.action);
      }
      rank.weight_versions = weight_versions(update, list);
    }
  }
  simulation.makespan = std::max(0.0, last - first);
  for (RankResult& rank : simulation.ranks) {
    rank.idle = simulation.makespan - rank.busy;
  }
}

}  // namespace pipetrain::schedule
