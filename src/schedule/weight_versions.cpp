#include "schedule/weight_versions.h"

#include <algorithm>
#include <set>

namespace pipetrain::schedule {

namespace {

// What ends the use of weights by a micro-batch, and is followed by an update.
bool gives_weights(Kind kind) {
  return kind == Kind::backward || kind == Kind::backward_weight;
}

}  // namespace

int weight_versions(Update update, const std::vector<Action>& computations) {
  if (update != Update::every_backward) {
    return update == Update::delayed ? 2 : 1;
  }
  std::map<std::pair<int, int>, int> used;  // by stage and micro-batch
  std::multiset<int> in_flight;
  int current = 0;
  int due = 0;  // updates stand behind an overlapped pair, not in it
  int most = 1;
  for (const Action& action : computations) {
    const std::pair work(action.stage, action.microbatch);
    if (action.kind == Kind::forward) {
      used[work] = current;
      in_flight.insert(current);
    } else if (gives_weights(action.kind)) {
      in_flight.erase(in_flight.find(used.at(work)));
      ++due;
    }
    if (!action.overlaps_next) {
      current += due;
      due = 0;
    }
    if (!in_flight.empty()) {
      most = std::max(most, current - *in_flight.begin() + 1);
    }
  }
  return most;
}

WeightVersions::WeightVersions(const Schedule& schedule, int rank)
    : update_(schedule.update), versions_(weight_versions(update_, schedule.ranks[size_t(rank)])) {}

int WeightVersions::slot_of(const Action& action) {
  if (update_ == Update::step || action.kind == Kind::reduce_gradients) {
    return 0;
  }
  if (update_ == Update::delayed) {
    return 1;  // computations use the version before the current one, which the update keeps there
  }
  if (action.kind == Kind::optimizer_step) {
    const int kept = in_flight_ > 0 ? kept_slot(current_) : 0;
    ++current_;
    return kept;
  }
  int& version = version_of_[{action.stage, action.microbatch}];
  if (action.kind == Kind::forward) {
    ++in_flight_;
    version = current_;
  } else if (gives_weights(action.kind)) {
    --in_flight_;
  }
  return version == current_ ? 0 : kept_slot(version);
}

}  // namespace pipetrain::schedule
