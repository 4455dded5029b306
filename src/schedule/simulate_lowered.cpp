#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/error.h"
#include "pipetrain/schedule/simulate.h"
#include "schedule/account.h"

namespace pipetrain::schedule {

namespace {

// When the buffers of one channel become available.
struct ChannelTimes {
  double link_free = 0;
  std::vector<double> outgoing_free;
  std::vector<double> outgoing_ready;
  std::vector<double> incoming_free;
  std::vector<double> incoming_ready;
};

// One pass over the global order, in which everything an entry depends on stands before it.
class LoweredSimulator {
 public:
  LoweredSimulator(const LoweredSchedule& schedule, const Costs& costs, Links links)
      : schedule_(schedule),
        costs_(costs),
        links_(links),
        durations_(costs, schedule.placement),
        channels_(schedule.channels.size()),
        rank_free_(schedule.ranks.size(), 0),
        network_free_(schedule.ranks.size(), 0),
        starts_(schedule.ranks.size()) {
    for (size_t c = 0; c < channels_.size(); ++c) {
      channels_[c].outgoing_free.assign(schedule.channels[c].outgoing_slots, 0);
      channels_[c].outgoing_ready.assign(schedule.channels[c].outgoing_slots, 0);
      channels_[c].incoming_free.assign(schedule.channels[c].incoming_slots, 0);
      channels_[c].incoming_ready.assign(schedule.channels[c].incoming_slots, 0);
    }
    result_.ranks.resize(schedule.ranks.size());
    for (size_t r = 0; r < starts_.size(); ++r) {
      starts_[r].reserve(schedule.ranks[r].size());
      result_.ranks[r].intervals.reserve(schedule.ranks[r].size());
    }
    result_.transfers.reserve(schedule.order.size() / 2);
  }

  Simulation run() {
    const auto& order = schedule_.order;
    for (size_t i = 0; i < order.size(); ++i) {
      const LoweredAction& entry = enter(order[i]);
      if (is_send(entry.action.kind)) {
        ++i;
        if (i == order.size()) {
          throw InternalError(fmt::format("{}: {} is not followed by its receive", schedule_.name,
                                          to_string(entry.action)));
        }
        transfer(entry, order[i - 1].rank, enter(order[i]), order[i].rank);
      } else if (entry.action.overlaps_next && i + 1 < order.size()) {
        ++i;
        enter(order[i]);
        compute(order[i - 1].rank, order[i - 1].index, 2);
      } else {
        compute(order[i].rank, order[i].index, 1);
      }
    }
    account(result_, schedule_.placement, schedule_.update, durations_, costs_.weight_memory,
            rank_free_);
    return std::move(result_);
  }

 private:
  // The entry at `position`, which has to be the next one of its rank.
  const LoweredAction& enter(const LoweredSchedule::Position& position) {
    std::vector<double>& starts = starts_[position.rank];
    const LoweredAction& entry = schedule_.ranks[position.rank][position.index];
    if (size_t(position.index) != starts.size()) {
      throw InternalError(fmt::format("{}: rank {}, position {}: {} is out of order",
                                      schedule_.name, position.rank, position.index,
                                      to_string(entry.action)));
    }
    starts.push_back(0);
    return entry;
  }

  void transfer(const LoweredAction& send, int source, const LoweredAction& receive,
                int destination) {
    ChannelTimes& channel = channels_[send.message.channel];
    double start = std::max({channel.link_free, channel.outgoing_ready[send.message.slot],
                             channel.incoming_free[receive.message.slot],
                             receive.gate >= 0 ? starts_[destination][receive.gate] : 0.0});
    if (links_ == Links::one_at_a_time) {
      start = std::max({start, network_free_[source], network_free_[destination]});
    }
    const double end = start + costs_.transfer + costs_.latency;
    channel.link_free = start + costs_.transfer;
    channel.outgoing_free[send.message.slot] = end;
    channel.incoming_ready[receive.message.slot] = end;
    network_free_[source] = network_free_[destination] = end;
    starts_[source].back() = starts_[destination].back() = start;
    result_.transfers.push_back({send.action, start, end});
  }

  // `entries` computations of `rank` that start together.
  void compute(int rank, int index, int entries) {
    const LoweredAction* first = &schedule_.ranks[rank][index];
    const LoweredAction* last = first + entries;
    const auto sent = [&](const SlotRef& slot) {
      return slot.channel >= 0 && schedule_.channels[slot.channel].incoming_slots > 0;
    };
    double start = rank_free_[rank];
    for (const LoweredAction* entry = first; entry != last; ++entry) {
      if (sent(entry->input)) {
        start = std::max(start, channels_[entry->input.channel].incoming_ready[entry->input.slot]);
      }
      if (sent(entry->output)) {
        start = std::max(start, channels_[entry->output.channel].outgoing_free[entry->output.slot]);
      }
    }
    const Action actions[2] = {first->action, first[entries - 1].action};
    const double duration = durations_.of(rank, actions, entries);
    const double end = start + duration;
    rank_free_[rank] = end;
    result_.ranks[rank].busy += duration;
    for (const LoweredAction* entry = first; entry != last; ++entry) {
      starts_[rank][entry - schedule_.ranks[rank].data()] = start;
      if (sent(entry->input)) {
        channels_[entry->input.channel].incoming_free[entry->input.slot] = start;
      }
      if (sent(entry->output)) {
        channels_[entry->output.channel].outgoing_ready[entry->output.slot] = end;
      }
      if (is_compute(entry->action.kind)) {
        result_.ranks[rank].intervals.push_back({entry->action, start, end});
      }
    }
  }

  const LoweredSchedule& schedule_;
  const Costs& costs_;
  Links links_;
  Durations durations_;
  std::vector<ChannelTimes> channels_;
  std::vector<double> rank_free_;
  std::vector<double> network_free_;         // one_at_a_time: when the last transfer has ended
  std::vector<std::vector<double>> starts_;  // of every entry so far, for the gates
  Simulation result_;
};

}  // namespace

Simulation simulate(const LoweredSchedule& schedule, const Costs& costs, Links links) {
  return LoweredSimulator(schedule, costs, links).run();
}

}  // namespace pipetrain::schedule
