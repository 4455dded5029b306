#include "pipetrain/schedule/lower.h"

#include <algorithm>
#include <limits>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/schedule/validate.h"
#include "schedule/program.h"
#include "schedule/slot_pool.h"
#include "schedule/weight_versions.h"

namespace pipetrain::schedule {

namespace {

constexpr int default_outgoing = 2;
constexpr int incoming = 1;

// The makespan without slots and gates, in the times of make_order().
double free_makespan(const Schedule& schedule) {
  const double share = schedule.placement.chunks();
  Costs costs;
  costs.forward = costs.backward_input = costs.backward_weight = {share};
  costs.latency = order_latency;
  return simulate(schedule, costs).makespan;
}

// Two outgoing slots per channel, unless writers then wait where unlimited slots would not make
// them: such a channel gets as many as it can fill.
GlobalOrder order_with_slots(const Schedule& schedule, Program& program) {
  constexpr double less_than_a_computation = 0.5;
  const int channels = int(program.channels.size());
  for (int c = 0; c < channels; ++c) {
    program.channels[c].incoming_slots = program.stays(c) ? 0 : incoming;
  }
  std::vector<int> outgoing(channels, default_outgoing);
  GlobalOrder order = make_order(program, outgoing);
  if (!order.complete || order.makespan > free_makespan(schedule) + less_than_a_computation) {
    const GlobalOrder unlimited =
        make_order(program, std::vector<int>(channels, std::numeric_limits<int>::max()));
    bool raised = true;
    while (raised &&
           (!order.complete || order.makespan > unlimited.makespan + less_than_a_computation)) {
      raised = false;
      for (int c = 0; c < channels; ++c) {
        if (order.delayed[c] && unlimited.peak_outgoing[c] > outgoing[c]) {
          outgoing[c] = unlimited.peak_outgoing[c];
          raised = true;
        }
      }
      order = make_order(program, outgoing);
    }
  }
  for (int c = 0; c < channels; ++c) {
    program.channels[c].outgoing_slots = program.stays(c) ? 0 : outgoing[c];
  }
  return order;
}

// Cuts the global order into the lists of the ranks and assigns every slot.
class Emitter {
 public:
  Emitter(const Schedule& schedule, const Program& program)
      : program_(program),
        microbatches_(schedule.placement.microbatches()),
        activation_of_(size_t(schedule.placement.stages()) * microbatches_, 0),
        output_slot_(program.messages.size(), -1),
        indices_(program.ranks.size()),
        activations_(program.ranks.size()),
        weights_(program.ranks.size()),
        inside_(program.channels.size()),
        sent_(program.channels.size(), 0),
        written_(program.channels.size(), 0),
        result_{schedule.name, schedule.placement, program.channels, {}, {}, {}, {}, {}} {
    result_.update = schedule.update;
    result_.forward_only = schedule.forward_only;
    result_.ranks.resize(program.ranks.size());
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      result_.ranks[rank].reserve(program.ranks[rank].size());
      weights_[rank] = WeightVersions(schedule, int(rank));
      result_.weight_versions.push_back(weights_[rank].versions());
    }
    // A step that keeps no activation still computes in one slot.
    if (schedule.forward_only) {
      for (SlotPool& pool : activations_) {
        pool.take();
      }
    }
  }

  LoweredSchedule run(const GlobalOrder& order) {
    for (const Node& node : order.nodes) {
      if (node.rank < 0) {
        emit_transfer(node.index);
      } else {
        emit_computation(node.rank, node.index);
      }
    }
    for (size_t rank = 0; rank < activations_.size(); ++rank) {
      result_.activation_slots.push_back(activations_[rank].size());
    }
    for (size_t c = 0; c < inside_.size(); ++c) {
      if (program_.stays(int(c))) {
        result_.channels[c].outgoing_slots = inside_[c].size();
      }
    }
    result_.gradient_slots.resize(result_.ranks.size());
    assign_gradient_slots(&result_, std::vector<bool>(size_t(result_.placement.stages()), true));
    return std::move(result_);
  }

 private:
  LoweredAction& append(int rank, const Action& action) {
    LoweredAction entry;
    entry.action = action;
    result_.order.push_back({rank, int(result_.ranks[rank].size())});
    result_.ranks[rank].push_back(entry);
    return result_.ranks[rank].back();
  }

  void emit_transfer(int id) {
    const Message& message = program_.messages[id];
    const Channel& channel = program_.channels[message.channel];
    const Action& producer = program_.ranks[channel.source][message.producer].action;
    const Action& consumer = program_.ranks[channel.destination][message.consumer].action;
    const bool forward = channel.direction == Direction::forward;
    LoweredAction& send = append(
        channel.source,
        {forward ? Kind::send_forward : Kind::send_backward, producer.stage, producer.microbatch});
    send.message = {message.channel, output_slot_[id]};
    LoweredAction& receive =
        append(channel.destination, {forward ? Kind::receive_forward : Kind::receive_backward,
                                     consumer.stage, consumer.microbatch});
    receive.message = {message.channel, sent_[message.channel]++ % incoming};
    receive.gate = message.gate < 0 ? -1 : indices_[channel.destination][message.gate];
  }

  // One computation or both of an overlapped pair: what they take, they take before anything is
  // given back.
  void emit_computation(int rank, int index) {
    const std::vector<ProgramEntry>& list = program_.ranks[rank];
    const int entries = list[index].action.overlaps_next ? 2 : 1;
    for (int i = index; i < index + entries; ++i) {
      LoweredAction& entry = append(rank, list[i].action);
      indices_[rank].push_back(result_.order.back().index);
      take_memory(rank, entry);
      entry.input = take_input(list[i].input);
      entry.output = take_output(list[i].output);
      entry.weights = weights_[rank].slot_of(list[i].action);
    }
    for (int i = index; i < index + entries; ++i) {
      give_memory(rank, list[i].action);
    }
  }

  SlotRef take_input(int message) {
    if (message < 0) {
      return {};
    }
    const int channel = program_.messages[message].channel;
    if (!program_.stays(channel)) {
      return {channel, (sent_[channel] - 1) % incoming};
    }
    inside_[channel].give(output_slot_[message]);
    return {channel, output_slot_[message]};
  }

  SlotRef take_output(int message) {
    if (message < 0) {
      return {};
    }
    const int channel = program_.messages[message].channel;
    output_slot_[message] = program_.stays(channel)
                                ? inside_[channel].take()
                                : written_[channel]++ % program_.channels[channel].outgoing_slots;
    return {channel, output_slot_[message]};
  }

  size_t at(const Action& action) const {
    return size_t(action.stage) * microbatches_ + action.microbatch;
  }

  void take_memory(int rank, LoweredAction& entry) {
    if (!is_compute(entry.action.kind)) {
      return;
    }
    const size_t work = at(entry.action);
    if (entry.action.kind == Kind::forward && !result_.forward_only) {
      activation_of_[work] = activations_[rank].take();
    }
    entry.activation_slot = activation_of_[work];
  }

  void give_memory(int rank, const Action& action) {
    if (action.kind == Kind::backward || action.kind == Kind::backward_weight) {
      activations_[rank].give(activation_of_[at(action)]);
    }
  }

  const Program& program_;
  int microbatches_;
  std::vector<int> activation_of_;         // [stage, microbatch]
  std::vector<int> output_slot_;           // [message]
  std::vector<std::vector<int>> indices_;  // [rank][place in the program]: index in the list
  std::vector<SlotPool> activations_;      // [rank]
  std::vector<WeightVersions> weights_;    // [rank]
  std::vector<SlotPool> inside_;           // [channel]: outgoing slots of hand-offs inside a rank
  std::vector<int> sent_;                  // [channel]: messages so far
  std::vector<int> written_;
  LoweredSchedule result_;
};

}  // namespace

bool LoweredSchedule::has_pairs(int rank) const {
  return std::any_of(ranks.at(size_t(rank)).begin(), ranks.at(size_t(rank)).end(),
                     [](const LoweredAction& entry) { return entry.action.overlaps_next; });
}

LoweredSchedule lower(const Schedule& schedule, const LowerOptions& options) {
  validate(schedule);
  if (options.forward_only && !schedule.forward_only) {
    return lower(forwards_of(schedule));
  }
  Program program = make_program(schedule);
  const GlobalOrder order = order_with_slots(schedule, program);
  return Emitter(schedule, program).run(order);
}

}  // namespace pipetrain::schedule
