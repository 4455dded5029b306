#include "cli/bench_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "pipetrain/runtime/synthetic_stage.h"

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

bool between_ranks(const schedule::LoweredSchedule& schedule, const schedule::SlotRef& slot) {
  return slot.channel >= 0 && schedule.channels[size_t(slot.channel)].incoming_slots > 0;
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
    const std::vector<Interval>& intervals = measured.ranks[r].intervals;
    const std::vector<double> times = synthetic_times(planned.ranks[r].intervals);
    double exposed = 0;
    double free = -std::numeric_limits<double>::infinity();  // when the rank could go on
    size_t i = 0;
    for (const LoweredAction& entry : schedule.ranks[r]) {
      if (!is_compute(entry.action.kind)) {
        continue;
      }
      const Interval& interval = intervals.at(i);
      double computed = free;
      double received = free;
      if (between_ranks(schedule, entry.input)) {
        computed = std::max(free, known.computed.at(read_by(entry.action)));
        received = std::max(free, known.received.at(read_by(entry.action)).end);
      }
      if (std::isfinite(computed) &&
          (between_ranks(schedule, entry.input) || between_ranks(schedule, entry.output))) {
        exposed += std::max(0.0, interval.start - computed);
      }
      const double own = synthetic ? times.at(i) : interval.end - interval.start;
      overheads.push_back(interval.end - (std::isfinite(received) ? received : interval.start) -
                          own);
      free = interval.end;
      ++i;
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
    // The share of a rank: its chunks, each of the mean time.
    const auto share = [&](Kind kind) {
      std::vector<double> means;
      for (const std::vector<RankTrace>& repeat : traces) {
        double sum = 0;
        int count = 0;
        for (const Interval& interval : repeat.at(rank).compute) {
          if (interval.action.kind == kind) {
            sum += interval.end - interval.start;
            ++count;
          }
        }
        means.push_back(count > 0 ? sum / count : 0);
      }
      return placement.chunks() * median(means);
    };
    costs.forward.push_back(share(Kind::forward));
    const double input = share(Kind::backward_input);
    costs.backward_input.push_back(input > 0 ? input : share(Kind::backward));
    costs.backward_weight.push_back(share(Kind::backward_weight));
  }
  return costs;
}

}  // namespace pipetrain
