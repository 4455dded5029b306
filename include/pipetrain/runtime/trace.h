#pragma once

#include <cstddef>
#include <vector>

#include "pipetrain/schedule/simulate.h"

namespace pipetrain {

// One measured step of one rank, from device events; times in milliseconds.
struct RankTrace {
  std::vector<schedule::Interval> compute;    // F, B, I, W, in list order
  std::vector<schedule::Interval> transfers;  // from the start of an operation to its end
  double end_of_step = 0;

  double busy() const;         // sum over compute
  double compute_end() const;  // of the last compute entry
};

std::vector<std::byte> serialize(const RankTrace& trace);
RankTrace deserialize_trace(const std::vector<std::byte>& bytes);

}  // namespace pipetrain
