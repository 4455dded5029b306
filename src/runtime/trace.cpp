#include "pipetrain/runtime/trace.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "pipetrain/error.h"

namespace pipetrain {

double RankTrace::busy() const {
  return schedule::covered_time(compute);
}

double RankTrace::compute_end() const {
  double end = 0;
  for (const schedule::Interval& interval : compute) {
    end = std::max(end, interval.end);
  }
  return end;
}

std::vector<std::byte> serialize(const RankTrace& trace) {
  static_assert(std::is_trivially_copyable_v<schedule::Interval>);
  const size_t counts[2] = {trace.compute.size(), trace.transfers.size()};
  const double times[2] = {trace.start, trace.end_of_step};
  std::vector<std::byte> bytes(sizeof(counts) + sizeof(times) +
                               (counts[0] + counts[1]) * sizeof(schedule::Interval));
  std::byte* out = bytes.data();
  const auto put = [&](const void* data, size_t size) {
    if (size > 0) {
      std::memcpy(out, data, size);
      out += size;
    }
  };
  put(counts, sizeof(counts));
  put(times, sizeof(times));
  put(trace.compute.data(), counts[0] * sizeof(schedule::Interval));
  put(trace.transfers.data(), counts[1] * sizeof(schedule::Interval));
  return bytes;
}

RankTrace deserialize_trace(const std::vector<std::byte>& bytes) {
  size_t counts[2] = {};
  double times[2] = {};
  RankTrace trace;
  if (bytes.size() < sizeof(counts) + sizeof(times)) {
    throw InternalError("trace: message too short");
  }
  const std::byte* in = bytes.data();
  std::memcpy(counts, in, sizeof(counts));
  std::memcpy(times, in + sizeof(counts), sizeof(times));
  trace.start = times[0];
  trace.end_of_step = times[1];
  in += sizeof(counts) + sizeof(times);
  if (bytes.size() !=
      sizeof(counts) + sizeof(times) + (counts[0] + counts[1]) * sizeof(schedule::Interval)) {
    throw InternalError("trace: message of wrong size");
  }
  const auto take = [&in](std::vector<schedule::Interval>& intervals, size_t count) {
    intervals.resize(count);
    if (count > 0) {  // a rank alone transfers nothing
      std::memcpy(intervals.data(), in, count * sizeof(schedule::Interval));
      in += count * sizeof(schedule::Interval);
    }
  };
  take(trace.compute, counts[0]);
  take(trace.transfers, counts[1]);
  return trace;
}

schedule::Simulation measured_step(const std::vector<RankTrace>& ranks,
                                   const schedule::Simulation& planned) {
  schedule::Simulation measured = planned;
  measured.transfers.clear();
  double zero = std::numeric_limits<double>::infinity();
  const auto since_epoch = [](const RankTrace& rank, double milliseconds) {
    return rank.start * 1000 + milliseconds;
  };
  for (const RankTrace& rank : ranks) {
    for (const schedule::Interval& interval : rank.compute) {
      zero = std::min(zero, since_epoch(rank, interval.start));
    }
  }
  double busiest = 0;
  measured.makespan = 0;
  measured.span = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankTrace& rank = ranks[r];
    schedule::RankResult& result = measured.ranks.at(r);
    const auto moved = [&](schedule::Interval interval) {
      interval.start = since_epoch(rank, interval.start) - zero;
      interval.end = since_epoch(rank, interval.end) - zero;
      return interval;
    };
    result.intervals.clear();
    double first = std::numeric_limits<double>::infinity();
    double last = -first;
    for (const schedule::Interval& interval : rank.compute) {
      result.intervals.push_back(moved(interval));
      first = std::min(first, result.intervals.back().start);
      last = std::max(last, result.intervals.back().end);
    }
    measured.makespan = std::max(measured.makespan, last);
    measured.span = std::max(measured.span, last - first);
    for (const schedule::Interval& interval : rank.transfers) {
      if (is_receive(interval.action.kind)) {  // both ends see the same transfer
        measured.transfers.push_back(moved(interval));
      }
    }
    result.busy = rank.busy();
    busiest = std::max(busiest, result.busy);
  }
  measured.ideal = busiest;
  for (schedule::RankResult& result : measured.ranks) {
    result.idle = measured.makespan - result.busy;
  }
  return measured;
}

}  // namespace pipetrain
