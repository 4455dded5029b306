#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"

namespace pipetrain::test {

// A stream wait that the executor makes for an entry of a rank's list.
struct WaitSite {
  enum class Kind {
    input_ready,   // F, B: the message must be there
    output_free,   // F, B: the outgoing slot must have been sent
    send_ready,    // SEND: the message must have been written
    receive_free,  // RECV: the incoming slot must have been read
    receive_gate,  // RECV: the entry before the consumer must have started; orders no data
    pair_begin,    // overlapped pair: its F comes after what stands before the pair
    pair_end,      // overlapped pair: what stands behind it comes after its F
  };
  Kind kind = Kind::input_ready;
  size_t entry = 0;  // index into the rank's list
  // Whether the other waits and the order of streams leave no way around: without it data is read
  // or overwritten at the wrong time.
  bool needed = false;
};

std::string to_string(const WaitSite& site, const schedule::LoweredSchedule& schedule, int rank);

// The waits of one step of `rank`, in the order in which they are made. A step follows another one.
std::vector<WaitSite> wait_sites(const schedule::LoweredSchedule& schedule, int rank);

}  // namespace pipetrain::test
