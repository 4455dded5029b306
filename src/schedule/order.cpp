#include <algorithm>
#include <queue>
#include <tuple>

#include "schedule/program.h"

namespace pipetrain::schedule {

namespace {

double duration_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
    case Kind::backward_input:
    case Kind::backward_weight:
      return 1;
    case Kind::backward:
      return 2;
    default:
      return 0;
  }
}

struct RankState {
  int next = 0;  // place in the program
  double free = 0;
  std::vector<double> starts;  // of the entries before `next`
};

struct ChannelState {
  int written = 0;                    // messages whose producer is in the order
  int transferred = 0;                // messages whose transfer is
  int consumed = 0;                   // messages whose consumer is
  double free = 0;                    // end of the last transfer
  std::vector<double> ready;          // [n]: end of the producer
  std::vector<double> transfer_ends;  // [n]
};

// An event-driven pass. Every rank and every channel has at most one candidate: its next entry, its
// next message. A candidate enters the queue once all it depends on is in the order, so its start
// time is known and final. Channels are numbered after the ranks.
class OrderBuilder {
 public:
  OrderBuilder(const Program& program, const std::vector<int>& outgoing)
      : program_(program),
        outgoing_(outgoing),
        ranks_(program.ranks.size()),
        channels_(program.channels.size()),
        queued_(ranks_.size() + channels_.size(), 0) {
    order_.peak_outgoing.assign(channels_.size(), 0);
    order_.delayed.assign(channels_.size(), 0);
  }

  GlobalOrder run() {
    size_t total = program_.messages.size();
    for (const std::vector<ProgramEntry>& list : program_.ranks) {
      total += list.size();
    }
    order_.nodes.reserve(total);
    for (int rank = 0; rank < int(ranks_.size()); ++rank) {
      offer_rank(rank);
    }
    while (!queue_.empty()) {
      const auto [start, is_compute_node, candidate] = queue_.top();
      queue_.pop();
      queued_[candidate] = 0;
      if (is_compute_node) {
        place_computation(candidate, start);
      } else {
        place_transfer(candidate - int(ranks_.size()), start);
      }
    }
    order_.complete = true;
    for (int rank = 0; rank < int(ranks_.size()); ++rank) {
      if (ranks_[rank].next < int(program_.ranks[rank].size())) {
        order_.complete = false;
        mark_full_outputs(rank);
      }
      order_.makespan = std::max(order_.makespan, ranks_[rank].free);
    }
    return std::move(order_);
  }

 private:
  // (start, computations after transfers, candidate): the least comes first.
  using Candidate = std::tuple<double, bool, int>;

  int entries_at(int rank) const {
    return program_.ranks[rank][ranks_[rank].next].action.overlaps_next ? 2 : 1;
  }

  void offer_rank(int rank) {
    const RankState& state = ranks_[rank];
    if (queued_[rank] || state.next == int(program_.ranks[rank].size())) {
      return;
    }
    const ProgramEntry* entry = &program_.ranks[rank][state.next];
    double start = state.free;
    for (int i = 0; i < entries_at(rank); ++i, ++entry) {
      if (entry->input >= 0 && !arrived(entry->input, start)) {
        return;
      }
    }
    const double input_start = start;
    entry = &program_.ranks[rank][state.next];
    for (int i = 0; i < entries_at(rank); ++i, ++entry) {
      if (entry->output < 0) {
        continue;
      }
      double writable = 0;
      if (!has_slot(entry->output, writable)) {
        return;
      }
      if (writable > input_start) {
        order_.delayed[program_.messages[entry->output].channel] = 1;
      }
      start = std::max(start, writable);
    }
    queued_[rank] = 1;
    queue_.push({start, true, rank});
  }

  void mark_full_outputs(int rank) {
    const ProgramEntry* entry = &program_.ranks[rank][ranks_[rank].next];
    for (int i = 0; i < entries_at(rank); ++i, ++entry) {
      double writable = 0;
      if (entry->output >= 0 && !has_slot(entry->output, writable)) {
        order_.delayed[program_.messages[entry->output].channel] = 1;
      }
    }
  }

  // Whether the input is in its incoming slot; moves `start` to when it came.
  bool arrived(int message, double& start) const {
    const int channel = program_.messages[message].channel;
    if (program_.stays(channel)) {
      return true;  // the producer stands before the consumer in the rank's list
    }
    const ChannelState& state = channels_[channel];
    if (state.transferred == state.consumed) {
      return false;
    }
    start = std::max(start, state.transfer_ends[state.consumed]);
    return true;
  }

  // Whether the output may be written, and from when on.
  bool has_slot(int message, double& writable) const {
    const int channel = program_.messages[message].channel;
    const ChannelState& state = channels_[channel];
    if (program_.stays(channel)) {
      return true;
    }
    const int slots = outgoing_[channel];
    if (state.written - state.transferred >= slots) {
      return false;
    }
    if (state.written >= slots) {
      writable = state.transfer_ends[state.written - slots];
    }
    return true;
  }

  void offer_channel(int channel) {
    const int candidate = int(ranks_.size()) + channel;
    const ChannelState& state = channels_[channel];
    if (queued_[candidate] || state.transferred == state.written) {
      return;
    }
    const int n = state.transferred;
    if (n - state.consumed >= program_.channels[channel].incoming_slots) {
      return;
    }
    const RankState& destination = ranks_[program_.channels[channel].destination];
    const Message& message = program_.messages[program_.channel_messages[channel][n]];
    if (message.gate >= destination.next) {
      return;
    }
    double start = std::max(state.free, state.ready[n]);
    if (message.gate >= 0) {
      start = std::max(start, destination.starts[message.gate]);
    }
    const int before = n - program_.channels[channel].incoming_slots;
    if (before >= 0) {
      const int consumer = program_.messages[program_.channel_messages[channel][before]].consumer;
      start = std::max(start, destination.starts[consumer]);
    }
    queued_[candidate] = 1;
    queue_.push({start, false, candidate});
  }

  void place_computation(int rank, double start) {
    RankState& state = ranks_[rank];
    const int entries = entries_at(rank);
    const ProgramEntry* first = &program_.ranks[rank][state.next];
    double end = start;
    for (int i = 0; i < entries; ++i) {
      end += duration_of(first[i].action.kind);
    }
    order_.nodes.push_back({rank, state.next});
    for (int i = 0; i < entries; ++i) {
      state.starts.push_back(start);
      if (first[i].input >= 0) {
        ++channels_[program_.messages[first[i].input].channel].consumed;
      }
      if (first[i].output >= 0) {
        const int channel = program_.messages[first[i].output].channel;
        ChannelState& output = channels_[channel];
        ++output.written;
        output.ready.push_back(end);
        order_.peak_outgoing[channel] =
            std::max(order_.peak_outgoing[channel], output.written - output.transferred);
      }
    }
    state.next += entries;
    state.free = end;
    for (const int channel : program_.incoming[rank]) {
      offer_channel(channel);
    }
    for (int i = 0; i < entries; ++i) {
      if (first[i].output >= 0 && !program_.stays(program_.messages[first[i].output].channel)) {
        offer_channel(program_.messages[first[i].output].channel);
      }
    }
    offer_rank(rank);
  }

  void place_transfer(int channel, double start) {
    ChannelState& state = channels_[channel];
    order_.nodes.push_back({-1, program_.channel_messages[channel][state.transferred]});
    state.free = start + order_latency;
    state.transfer_ends.push_back(state.free);
    ++state.transferred;
    offer_channel(channel);
    offer_rank(program_.channels[channel].destination);
    offer_rank(program_.channels[channel].source);
  }

  const Program& program_;
  const std::vector<int>& outgoing_;
  std::vector<RankState> ranks_;
  std::vector<ChannelState> channels_;
  std::vector<char> queued_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> queue_;
  GlobalOrder order_;
};

}  // namespace

GlobalOrder make_order(const Program& program, const std::vector<int>& outgoing) {
  return OrderBuilder(program, outgoing).run();
}

}  // namespace pipetrain::schedule
