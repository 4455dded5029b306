#include "cli/bench_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

namespace pipetrain {
namespace {

using schedule::Action;
using schedule::Interval;
using schedule::Kind;
using schedule::LoweredAction;

// What a computation hands to the next or the previous stage: (forward, stage, micro-batch).
using Product = std::tuple<bool, int, int>;

Product made_by(const Action& action) {
  return {action.kind == Kind::forward, action.stage, action.microbatch};
}

Product read_by(const Action& action) {
  const bool forward = action.kind == Kind::forward;
  return {forward, action.stage + (forward ? -1 : 1), action.microbatch};
}

bool makes_something(const Action& action) {
  return action.kind == Kind::forward || is_backward(action.kind);
}

// When the step's products were computed, and when their messages came.
struct Messages {
  std::map<Product, double> computed;
  std::map<Product, Interval> received;  // from when the receiver was ready for it
};

Messages messages(const schedule::Simulation& measured) {
  Messages result;
  for (const schedule::RankResult& rank : measured.ranks) {
    for (const Interval& interval : rank.intervals) {
      if (makes_something(interval.action)) {
        result.computed[made_by(interval.action)] = interval.end;
      }
    }
  }
  for (const Interval& transfer : measured.transfers) {
    Action reader = transfer.action;
    reader.kind =
        transfer.action.kind == Kind::receive_forward ? Kind::forward : Kind::backward_input;
    result.received[read_by(reader)] = transfer;
  }
  return result;
}

struct Computation {
  const LoweredAction& entry;
  const Interval& interval;  // measured
  double given = 0;          // planned time
};

// What a rank computes, in list order: one by one, or both parts of an overlapped pair.
std::vector<std::vector<Computation>> computations(const schedule::LoweredSchedule& schedule,
                                                   const schedule::Simulation& measured,
                                                   const schedule::Simulation& planned,
                                                   size_t rank) {
  std::vector<std::vector<Computation>> groups;
  bool in_pair = false;
  size_t i = 0;
  for (const LoweredAction& entry : schedule.ranks[rank]) {
    if (!is_compute(entry.action.kind)) {
      continue;
    }
    if (!in_pair) {
      groups.emplace_back();
    }
    const Interval& given = planned.ranks[rank].intervals.at(i);
    groups.back().push_back({entry, measured.ranks[rank].intervals.at(i), given.end - given.start});
    in_pair = entry.action.overlaps_next;
    ++i;
  }
  return groups;
}

bool between_ranks(const schedule::LoweredSchedule& schedule, const schedule::SlotRef& slot) {
  return slot.channel >= 0 && schedule.channels[size_t(slot.channel)].incoming_slots > 0;
}

class Mean {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  double mean() const { return count_ > 0 ? sum_ / count_ : 0; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

// Of one step of one rank.
struct StepTimes {
  std::array<Mean, 4> alone;  // F, B, I, W outside of pairs
  Mean pairs;                 // of F and B
};

StepTimes step_times(const std::vector<Interval>& intervals) {
  StepTimes times;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const Interval& interval = intervals[i];
    if (!interval.action.overlaps_next) {
      times.alone.at(size_t(interval.action.kind)).add(interval.end - interval.start);
      continue;
    }
    const Interval& other = intervals.at(++i);
    if (interval.action.kind == Kind::backward || other.action.kind == Kind::backward) {
      times.pairs.add(schedule::covered_time({interval, other}));
    }
  }
  return times;
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

StepFigures step_figures(const schedule::LoweredSchedule& schedule,
                         const schedule::Simulation& planned, double hop,
                         const std::vector<RankTrace>& ranks, bool synthetic) {
  const schedule::Simulation measured = measured_step(ranks, planned);
  const Messages known = messages(measured);
  StepFigures figures;
  figures.makespan = measured.makespan;
  figures.bubble = (measured.makespan - planned.ideal) / measured.makespan;
  std::vector<double> overheads;
  for (size_t r = 0; r < measured.ranks.size(); ++r) {
    double exposed = 0;
    double free = -std::numeric_limits<double>::infinity();  // when the rank could go on
    for (const std::vector<Computation>& group : computations(schedule, measured, planned, r)) {
      double could_start = std::numeric_limits<double>::infinity();
      double start = could_start;
      double end = free;
      bool sends_or_receives = false;
      for (const auto& [entry, interval, given] : group) {
        double computed = free;
        double received = free;
        if (between_ranks(schedule, entry.input)) {
          computed = std::max(free, known.computed.at(read_by(entry.action)));
          received = std::max(free, known.received.at(read_by(entry.action)).end);
        }
        sends_or_receives |=
            between_ranks(schedule, entry.input) || between_ranks(schedule, entry.output);
        could_start = std::min(could_start, computed);
        start = std::min(start, interval.start);
        end = std::max(end, interval.end);
        const double own = synthetic ? given : interval.end - interval.start;
        overheads.push_back(interval.end - (std::isfinite(received) ? received : interval.start) -
                            own);
      }
      if (std::isfinite(could_start) && sends_or_receives) {
        exposed += std::max(0.0, start - could_start);
      }
      free = end;
    }
    figures.exposed_communication = std::max(figures.exposed_communication, exposed);
  }
  figures.action_overhead = overheads.empty() ? 0 : median(overheads);
  std::vector<double> hops;
  for (const auto& [product, transfer] : known.received) {
    if (const double computed = known.computed.at(product); transfer.start <= computed) {
      hops.push_back(transfer.end - computed - hop);
    }
  }
  if (!hops.empty()) {
    figures.hop_overhead = median(hops);
  }
  double first = std::numeric_limits<double>::infinity();
  double last = 0;
  for (const RankTrace& rank : ranks) {
    first = std::min(first, rank.start);
    last = std::max(last, rank.start + rank.end_of_step / 1000);
  }
  figures.whole_step = (last - first) * 1000;
  return figures;
}

schedule::Costs measured_costs(const schedule::Placement& placement,
                               const std::vector<std::vector<RankTrace>>& traces) {
  schedule::Costs costs{.forward = {}, .backward_input = {}, .backward_weight = {}};
  for (size_t rank = 0; rank < size_t(placement.ranks()); ++rank) {
    std::vector<StepTimes> steps;
    for (const std::vector<RankTrace>& repeat : traces) {
      steps.push_back(step_times(repeat.at(rank).compute));
    }
    // The share of a rank: its chunks, each of the mean time.
    const auto share = [&](auto mean_of) {
      std::vector<double> means;
      for (const StepTimes& step : steps) {
        means.push_back(mean_of(step));
      }
      return placement.chunks() * median(means);
    };
    const auto share_of = [&](Kind kind) {
      return share([&](const StepTimes& step) { return step.alone[size_t(kind)].mean(); });
    };
    costs.forward.push_back(share_of(Kind::forward));
    const double input = share_of(Kind::backward_input);
    costs.backward_input.push_back(input > 0 ? input : share_of(Kind::backward));
    costs.backward_weight.push_back(share_of(Kind::backward_weight));
    costs.overlapped.push_back(share([](const StepTimes& step) { return step.pairs.mean(); }));
  }
  return costs;
}

}  // namespace pipetrain
