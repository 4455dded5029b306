#pragma once

#include "schedule/durations.h"

namespace pipetrain::schedule {

// Fills makespan, span, ideal and per rank idle, peaks and weight versions of a simulation whose
// intervals and busy times are known. `end` is when the last rank has ended.
void account(Simulation& simulation, const Placement& placement, Update update,
             const Durations& durations, double weight_memory, const std::vector<double>& end);

}  // namespace pipetrain::schedule
