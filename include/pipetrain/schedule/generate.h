#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain::schedule {

// What a generator may be asked for. Fields a schedule does not use must keep their default.
struct Request {
  std::string name;  // as in --schedule
  int ranks = 1;
  int microbatches = 1;
  int chunks = 0;    // v; 0: the schedule's own (1, or 2 where it must be)
  int group = 0;     // N of interleaved; 0: min(p, m)
  Costs costs = {};  // v-half and v-min fill idle gaps for these times; the others do not look
};

// Names of the schedules that generate() knows, in the order in which they are listed to the user.
std::vector<std::string> schedule_names();

// Builds the compute-only schedule by the rules of the literature. Throws UsageError that names the
// flag for what the schedule refuses.
Schedule generate(const Request& request);

// The forwards of a schedule, without overlapped pairs: evaluation and generation with the same
// placement and number of micro-batches.
Schedule forwards_of(const Schedule& schedule);

// A forward-only schedule of any number of micro-batches for ranks that hold the stages of
// `placement`. Its placement is the same, but loop where `placement` is mirrored (one copy of every
// stage is enough).
Schedule generate_forward_only(const Placement& placement, int microbatches);

}  // namespace pipetrain::schedule
