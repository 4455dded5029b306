#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"

namespace pipetrain::schedule {

// Throws UsageError naming rank, position and action for: duplicates, missing or extra
// micro-batches, W without I, wrong owner, order violations inside and across ranks, deadlock.
// Returns warnings (weight gradients of a stage that do not ascend in micro-batch).
std::vector<std::string> validate(const Schedule& schedule);

// The same, and FIFO mismatches on a directed edge, slots used twice or read empty, more slots
// than the pool has, gates that are no earlier computation, a wrong global order, deadlock with
// rendezvous sends.
std::vector<std::string> validate(const LoweredSchedule& schedule);

}  // namespace pipetrain::schedule
