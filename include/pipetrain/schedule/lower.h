#pragma once

#include "pipetrain/schedule/schedule.h"

namespace pipetrain::schedule {

struct LowerOptions {
  bool forward_only = false;  // evaluation: the F of the schedule, no activation is kept
};

// Puts the communication of ALL ranks into a compute-only schedule, in one pass over one global
// order. Every buffer is assigned here: channel slots (2 outgoing, 1 incoming; more where the
// schedule needs them), activation and gradient slots. Throws UsageError when the schedule cannot
// finish under rendezvous sends.
LoweredSchedule lower(const Schedule& schedule, const LowerOptions& options = {});

// Assigns the gradient slots again, for schedules whose stages differ: `keeps`, per stage, says
// whether the stage's I leaves its W anything. The others get no slot.
void assign_gradient_slots(LoweredSchedule* schedule, std::vector<bool> keeps);

// How many slots the rank then has.
int gradient_slots(const LoweredSchedule& schedule, int rank, const std::vector<bool>& keeps);

// The same program on the channels of `base`, so that one exchange serves both: a channel between
// the same ranks has the number that it has there, channels that `base` lacks follow, and each has
// the slots that the one or the other needs.
LoweredSchedule on_channels_of(const LoweredSchedule& base, LoweredSchedule schedule);

}  // namespace pipetrain::schedule
