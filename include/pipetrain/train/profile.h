#pragma once

#include <cstddef>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/comm/grid.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/train/budget.h"

namespace pipetrain {

// Milliseconds that the passes of one part of a model take for one micro-batch.
struct PassTimes {
  double forward = 0;
  double backward = 0;  // the whole
  double backward_input = 0;
  double backward_weight = 0;

  double sum() const { return forward + backward_input + backward_weight; }
};

// The parts that every stage is made of. The head's forward holds its loss and all its gradients.
struct DeviceProfile {
  PassTimes block;
  PassTimes embedding;
  PassTimes head;
};

// A message from one pipeline rank to its neighbour, in milliseconds: one byte takes `latency`, the
// hidden state of a micro-batch `transfer` more.
struct LinkProfile {
  double latency = 0;
  double transfer = 0;
};

// What a job is planned with.
struct Profile {
  std::vector<DeviceProfile> ranks;  // per pipeline rank; the slowest of its replicas
  LinkProfile link;                  // the slowest
};

// Device memory that measuring takes at its peak; all of it is freed before measure_profile()
// returns. No rank of the job that holds a block, the embedding or the head needs less.
size_t profile_bytes(const BudgetRequest& request);

// Times the parts of the model at the job's micro-batch shape and precision on scratch memory, then
// the links between neighbouring pipeline ranks (and from the last to the first, with
// `wrap_around`). Devices of one name are alike: the first rank of each name measures, one rank
// after the other while all others sleep, so that ranks that share cores do not disturb each other.
// Links are measured in rounds in which a rank has one peer. Collective over the job; the same on
// all ranks. The stages of `request` are not looked at. `watchdog` may be null.
Profile measure_profile(const BudgetRequest& request, const Grid& grid, bool wrap_around,
                        Control& control, Watchdog* watchdog);

}  // namespace pipetrain
