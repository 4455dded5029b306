#pragma once

#include <cstddef>
#include <string>

#include "pipetrain/comm/control.h"

namespace pipetrain {

struct RingOptions {
  size_t bytes = 0;  // of a message
  int messages = 1;  // in each direction
  bool one_stream_per_rank = false;
};

// Makes a ring of all ranks with a forward and a backward channel on every edge, warms it up, sends
// messages around in both directions and returns the first thing that is wrong on this rank.
std::string check_ring_of_channels(Control& control, const RingOptions& options);

}  // namespace pipetrain
