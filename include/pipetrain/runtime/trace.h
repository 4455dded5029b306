#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/simulate.h"

namespace pipetrain {

// One measured step of one rank, in milliseconds since the rank's first action began.
struct RankTrace {
  std::vector<schedule::Interval> compute;
  std::vector<schedule::Interval> transfers;
};

std::vector<std::byte> serialize(const RankTrace& trace);
RankTrace deserialize_trace(const std::vector<std::byte>& bytes);

}  // namespace pipetrain
