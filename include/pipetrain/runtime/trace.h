#pragma once

#include <cstddef>
#include <vector>

#include "pipetrain/schedule/simulate.h"

namespace pipetrain {

// One measured step of one rank, from device events; times in milliseconds since `start`.
struct RankTrace {
  double start = 0;  // of the step on this rank, seconds since the Unix epoch
  std::vector<schedule::Interval> compute;    // F, B, I, W, in list order
  std::vector<schedule::Interval> transfers;  // from the start of an operation to its end
  double end_of_step = 0;

  double busy() const;         // in which something was computed; a pair's overlap counts once
  double compute_end() const;  // of the last compute entry
};

std::vector<std::byte> serialize(const RankTrace& trace);
RankTrace deserialize_trace(const std::vector<std::byte>& bytes);

// The step as a simulation's result, so that it is drawn and compared like a planned one: times in
// milliseconds since the first compute entry of any rank; ideal is the busiest rank's time; peaks
// are those of `planned`.
schedule::Simulation measured_step(const std::vector<RankTrace>& ranks,
                                   const schedule::Simulation& planned);

}  // namespace pipetrain
