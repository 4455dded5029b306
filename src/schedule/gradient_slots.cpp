#include "pipetrain/schedule/lower.h"
#include "schedule/slot_pool.h"

namespace pipetrain::schedule {
namespace {

// Calls assign(index, slot) for every I and W of the rank; slot is -1 where the stage keeps none.
// Returns the number of slots.
template <typename Assign>
int walk(const LoweredSchedule& schedule, int rank, const std::vector<bool>& keeps, Assign assign) {
  const auto microbatches = size_t(schedule.placement.microbatches());
  std::vector<int> slot_of(size_t(schedule.placement.stages()) * microbatches, -1);
  SlotPool pool;
  const std::vector<LoweredAction>& list = schedule.ranks.at(size_t(rank));
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i].action;
    if (action.kind != Kind::backward_input && action.kind != Kind::backward_weight) {
      continue;
    }
    int& slot = slot_of[size_t(action.stage) * microbatches + size_t(action.microbatch)];
    if (action.kind == Kind::backward_input && keeps.at(size_t(action.stage))) {
      slot = pool.take();
    }
    assign(i, slot);
    if (action.kind == Kind::backward_weight && slot >= 0) {
      pool.give(slot);
    }
  }
  return pool.size();
}

}  // namespace

void assign_gradient_slots(LoweredSchedule* schedule, std::vector<bool> keeps) {
  for (size_t rank = 0; rank < schedule->ranks.size(); ++rank) {
    std::vector<LoweredAction>& list = schedule->ranks[rank];
    schedule->gradient_slots[rank] = walk(*schedule, int(rank), keeps, [&](size_t index, int slot) {
      list[index].gradient_slot = slot;
    });
  }
  schedule->keeps_gradients = std::move(keeps);
}

int gradient_slots(const LoweredSchedule& schedule, int rank, const std::vector<bool>& keeps) {
  return walk(schedule, rank, keeps, [](size_t, int) {});
}

}  // namespace pipetrain::schedule
