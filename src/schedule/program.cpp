#include "schedule/program.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "pipetrain/schedule/action.h"

namespace pipetrain::schedule {

namespace {

// The list of one rank with its gradient reductions and optimizer steps. A stage is reduced right
// after its last weight gradient. The two copies of a mirrored stage are summed over two ranks, so
// there all reductions stand at the end, in one order on both.
std::vector<Action> with_updates(const Schedule& schedule, int rank) {
  const std::vector<Action>& list = schedule.ranks[rank];
  if (schedule.forward_only) {
    return list;
  }
  const auto gives_weights = [](Kind kind) {
    return kind == Kind::backward || kind == Kind::backward_weight;
  };
  std::map<int, int> last;  // stage -> position of its last weight gradient
  for (int i = 0; i < int(list.size()); ++i) {
    if (gives_weights(list[i].kind)) {
      last[list[i].stage] = i;
    }
  }
  const bool every = schedule.update == Update::every_backward;
  const bool at_end = schedule.placement.kind() == Placement::Kind::mirrored;
  std::vector<Action> result;
  std::vector<Action> due;  // reductions that wait for the end of an overlapped pair
  for (int i = 0; i < int(list.size()); ++i) {
    const Action& action = list[i];
    result.push_back(action);
    if (!at_end && gives_weights(action.kind) && (every || last[action.stage] == i)) {
      due.push_back({Kind::reduce_gradients, action.stage, 0});
      if (every) {
        due.push_back({Kind::optimizer_step, action.stage, action.microbatch});
      }
    }
    if (!action.overlaps_next) {
      result.insert(result.end(), due.begin(), due.end());
      due.clear();
    }
  }
  if (at_end) {
    for (const auto& [stage, position] : last) {
      result.push_back({Kind::reduce_gradients, stage, 0});
    }
  }
  if (!every) {
    result.push_back({Kind::optimizer_step, 0, 0});
  }
  return result;
}

// Numbers the messages and looks them up by what they carry.
class Messages {
 public:
  explicit Messages(const Placement& placement)
      : placement_(placement),
        ids_(2 * size_t(placement.stages()) * placement.microbatches(), -1) {}

  // Of the output of F(stage), or of the backward of `stage`; -1: it goes nowhere.
  int output_of(Program& program, const Action& action) {
    const bool forward = action.kind == Kind::forward;
    const int to = forward ? action.stage + 1 : action.stage - 1;
    if (!(forward || is_backward(action.kind)) || to < 0 || to >= placement_.stages()) {
      return -1;
    }
    return id(program, forward, action.stage, to, action.microbatch);
  }

  int input_of(Program& program, const Action& action) {
    const bool forward = action.kind == Kind::forward;
    const int from = forward ? action.stage - 1 : action.stage + 1;
    if (!(forward || is_backward(action.kind)) || from < 0 || from >= placement_.stages()) {
      return -1;
    }
    return id(program, forward, from, action.stage, action.microbatch);
  }

 private:
  int id(Program& program, bool forward, int from, int to, int microbatch) {
    int& id = ids_[(size_t(from) * 2 + forward) * placement_.microbatches() + microbatch];
    if (id < 0) {
      id = int(program.messages.size());
      const int source = placement_.owner(from, microbatch);
      const int destination = placement_.owner(to, microbatch);
      const Direction direction = forward ? Direction::forward : Direction::backward;
      const auto [found, added] = channels_.try_emplace(std::tuple(source, destination, direction),
                                                        int(program.channels.size()));
      if (added) {
        program.channels.push_back({source, destination, direction, 0, 0});
      }
      program.messages.push_back({found->second});
    }
    return id;
  }

  const Placement& placement_;
  std::vector<int> ids_;
  std::map<std::tuple<int, int, Direction>, int> channels_;
};

// Gates: a transfer waits for the start of the computation before its consumer. Both entries of an
// overlapped pair start together, so the gate of both is what stands before the pair.
void set_consumers(Program& program, int rank) {
  const std::vector<ProgramEntry>& list = program.ranks[rank];
  int before = -1;
  for (int i = 0; i < int(list.size()); ++i) {
    const int input = list[i].input;
    if (input >= 0) {
      program.messages[input].consumer = i;
      program.messages[input].gate = before;
      program.channel_messages[program.messages[input].channel].push_back(input);
    }
    if (is_compute(list[i].action.kind) && !list[i].action.overlaps_next) {
      before = i;
    }
  }
}

}  // namespace

Program make_program(const Schedule& schedule) {
  Program program;
  Messages messages(schedule.placement);
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    std::vector<ProgramEntry>& list = program.ranks.emplace_back();
    for (const Action& action : with_updates(schedule, rank)) {
      const int input = messages.input_of(program, action);
      const int output = messages.output_of(program, action);
      if (output >= 0) {
        program.messages[output].producer = int(list.size());
      }
      list.push_back({action, input, output});
    }
  }
  program.channel_messages.resize(program.channels.size());
  program.incoming.resize(program.ranks.size());
  for (int rank = 0; rank < int(program.ranks.size()); ++rank) {
    set_consumers(program, rank);
  }
  for (int c = 0; c < int(program.channels.size()); ++c) {
    if (!program.stays(c)) {
      program.incoming[program.channels[c].destination].push_back(c);
    }
  }
  return program;
}

}  // namespace pipetrain::schedule
