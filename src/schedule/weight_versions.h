#pragma once

#include <map>
#include <utility>
#include <vector>

#include "pipetrain/schedule/schedule.h"

namespace pipetrain::schedule {

// How many versions of its weights a rank with this list of computations keeps, the current one
// included.
//   pipedream      a backward uses the weights that its forward used (Narayanan et al. 2019), so
//                  every version from that of the oldest micro-batch in flight to the current one
//   pipedream-2bw  the current one and the one before it (Narayanan et al. 2021)
int weight_versions(Update update, const std::vector<Action>& computations);

// The slots of one rank's versions, asked for along its list. Slot 0 holds the current weights; a
// version that is older moves to another one before it is changed. A step begins with the version
// that the step before it left in slot 0, so the slots of all steps are the same.
class WeightVersions {
 public:
  WeightVersions() = default;
  WeightVersions(const Schedule& schedule, int rank);

  int versions() const { return versions_; }
  // LoweredAction::weights of the next entry of the list.
  int slot_of(const Action& action);

 private:
  int kept_slot(int version) const { return 1 + version % (versions_ - 1); }

  Update update_ = Update::step;
  int versions_ = 1;
  int current_ = 0;                                // updates of this step
  int in_flight_ = 0;                              // chunks between F and B or W
  std::map<std::pair<int, int>, int> version_of_;  // by stage and micro-batch
};

}  // namespace pipetrain::schedule
