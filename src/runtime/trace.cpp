#include "pipetrain/runtime/trace.h"

#include <algorithm>
#include <cstring>

#include "pipetrain/error.h"

namespace pipetrain {

double RankTrace::busy() const {
  double sum = 0;
  for (const schedule::Interval& interval : compute) {
    sum += interval.end - interval.start;
  }
  return sum;
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
  std::vector<std::byte> bytes(sizeof(counts) + sizeof(double) +
                               (counts[0] + counts[1]) * sizeof(schedule::Interval));
  std::byte* out = bytes.data();
  const auto put = [&](const void* data, size_t size) {
    if (size > 0) {
      std::memcpy(out, data, size);
      out += size;
    }
  };
  put(counts, sizeof(counts));
  put(&trace.end_of_step, sizeof(double));
  put(trace.compute.data(), counts[0] * sizeof(schedule::Interval));
  put(trace.transfers.data(), counts[1] * sizeof(schedule::Interval));
  return bytes;
}

RankTrace deserialize_trace(const std::vector<std::byte>& bytes) {
  size_t counts[2] = {};
  RankTrace trace;
  if (bytes.size() < sizeof(counts) + sizeof(double)) {
    throw InternalError("trace: message too short");
  }
  const std::byte* in = bytes.data();
  std::memcpy(counts, in, sizeof(counts));
  std::memcpy(&trace.end_of_step, in + sizeof(counts), sizeof(double));
  in += sizeof(counts) + sizeof(double);
  if (bytes.size() !=
      sizeof(counts) + sizeof(double) + (counts[0] + counts[1]) * sizeof(schedule::Interval)) {
    throw InternalError("trace: message of wrong size");
  }
  trace.compute.resize(counts[0]);
  trace.transfers.resize(counts[1]);
  std::memcpy(trace.compute.data(), in, counts[0] * sizeof(schedule::Interval));
  in += counts[0] * sizeof(schedule::Interval);
  std::memcpy(trace.transfers.data(), in, counts[1] * sizeof(schedule::Interval));
  return trace;
}

}  // namespace pipetrain
