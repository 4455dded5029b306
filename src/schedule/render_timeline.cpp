#include "schedule/render_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pipetrain::schedule {
namespace {

int chunk_of(const Placement& placement, const Action& action) {
  if (placement.kind() == Placement::Kind::mirrored) {
    return placement.direction(action.microbatch);
  }
  return action.stage / placement.ranks();
}

void add_memory(RankTimeline& rank, const Block& block, double weight_memory, double share) {
  double time = block.end;
  double change = 0;
  switch (block.action.kind) {
    case Kind::forward:
      time = block.start;
      change = 1;
      break;
    case Kind::backward:
      change = -1;
      break;
    case Kind::backward_input:
      change = weight_memory - 1;
      break;
    case Kind::backward_weight:
      change = -weight_memory;
      break;
    default:
      return;
  }
  const double held = (rank.memory.empty() ? 0 : rank.memory.back().held) + change * share;
  if (!rank.memory.empty() && rank.memory.back().time >= time) {
    rank.memory.back().held = held;  // given back and taken at once
  } else {
    rank.memory.push_back({time, held});
  }
  rank.peak = std::max(rank.peak, held);
}

RankTimeline make_rank(const std::vector<Interval>& intervals, const Placement& placement,
                       double first_start, double weight_memory) {
  RankTimeline rank;
  rank.busy = covered_time(intervals);
  rank.steady_begin = std::numeric_limits<double>::infinity();
  bool in_pair = false;
  for (const Interval& interval : intervals) {
    const Action& action = interval.action;
    Block block{action, interval.start - first_start, interval.end - first_start, 0, Lane::whole};
    block.chunk = chunk_of(placement, action);
    block.lane = in_pair                ? Lane::second_of_pair
                 : action.overlaps_next ? Lane::first_of_pair
                                        : Lane::whole;
    in_pair = action.overlaps_next;
    if (is_backward(action.kind)) {
      rank.steady_begin = std::min(rank.steady_begin, block.start);
    }
    if (action.kind == Kind::forward) {
      rank.cooldown_begin = std::max(rank.cooldown_begin, block.end);
    }
    add_memory(rank, block, weight_memory, 1.0 / placement.chunks());
    rank.blocks.push_back(block);
  }
  return rank;
}

}  // namespace

Timeline make_timeline(const Simulation& simulation, const Schedule& schedule,
                       double weight_memory) {
  double first_start = std::numeric_limits<double>::infinity();
  double last_end = -std::numeric_limits<double>::infinity();
  for (const RankResult& rank : simulation.ranks) {
    for (const Interval& interval : rank.intervals) {
      first_start = std::min(first_start, interval.start);
      last_end = std::max(last_end, interval.end);
    }
  }
  Timeline timeline;
  timeline.first_start = first_start;
  timeline.length = std::max(0.0, last_end - first_start);
  const Placement& placement = schedule.placement;
  timeline.chunks = placement.kind() == Placement::Kind::mirrored ? 2 : placement.chunks();
  double busiest = 0;
  for (const RankResult& result : simulation.ranks) {
    const RankTimeline& rank = timeline.ranks.emplace_back(
        make_rank(result.intervals, placement, first_start, weight_memory));
    busiest = std::max(busiest, rank.busy);
    for (const Block& block : rank.blocks) {
      timeline.whole_backward |= block.action.kind == Kind::backward;
      timeline.split_backward |= block.action.kind == Kind::backward_input;
    }
  }
  timeline.bubble = timeline.length > 0 ? 1 - busiest / timeline.length : 0;
  return timeline;
}

std::string picture_subtitle(const Schedule& schedule) {
  const Placement& placement = schedule.placement;
  std::string text =
      fmt::format("{} ranks, {} micro-batches", placement.ranks(), placement.microbatches());
  if (placement.kind() == Placement::Kind::mirrored) {
    text += ", two directions";
  } else if (placement.chunks() > 1) {
    text += fmt::format(", {} chunks per rank{}", placement.chunks(),
                        placement.kind() == Placement::Kind::v ? " (V)" : "");
  }
  return text;
}

double axis_step(double length, int count) {
  double power = std::pow(10, std::floor(std::log10(std::max(length, 1e-300) / count)));
  for (;; power *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (length <= step * power * count) {
        return step * power;
      }
    }
  }
}

std::string short_number(double value) {
  return fmt::format("{:.4g}", value);
}

}  // namespace pipetrain::schedule
