#pragma once

#include "schedule/durations.h"

// Improvements of a valid schedule for given times. All backwards must be split, no pair
// overlapped.
namespace pipetrain::schedule {

// Takes the idle gaps of all ranks by time and moves into each the first later computation of its
// rank that is ready and fits. The order within each (kind, stage) and the peak of every rank stay.
Schedule fill_gaps(const Schedule& schedule, const Durations& durations, double latency);

// After the last forward of a rank: a backward that is ready first, else the oldest weight
// gradient.
Schedule reorder_cool_down(const Schedule& schedule, const Durations& durations, double latency);

}  // namespace pipetrain::schedule
