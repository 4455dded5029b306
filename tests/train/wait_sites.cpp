#include "train/wait_sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace pipetrain::test {
namespace {

using schedule::Kind;
using schedule::LoweredAction;
using schedule::LoweredSchedule;

// What happens before what, over two steps of all ranks. A node is an operation of a stream; a
// transfer is one node of both its streams, for it ends when both sides have come to it.
//
// The waits around an overlapped pair order more than they have to: one is needed if without it two
// operations that use the same memory, one of them on the pair's second stream, have no order. That
// memory is an activation slot, the gradients that an F with the head adds to, and weights, tokens
// and gradients at both ends of a step. What only one of the streams uses needs none, and messages
// have waits of their own.
class Order {
 public:
  explicit Order(const LoweredSchedule& schedule) : schedule_(schedule) {
    for (int step = 0; step < 2; ++step) {
      number_transfers(step);
      for (int rank = 0; rank < int(schedule.ranks.size()); ++rank) {
        add_list(step, rank);
      }
      add_barrier();
    }
  }

  // The waits of the second step of `rank`, as (entry, kind, edge).
  struct Wait {
    WaitSite site;
    size_t edge = 0;
  };
  std::vector<Wait> waits(int rank) const {
    const auto found = waits_.find(rank);
    return found == waits_.end() ? std::vector<Wait>() : found->second;
  }

  bool needed(int rank, const Wait& wait) const {
    if (wait.edge == no_edge) {
      return false;
    }
    if (wait.site.kind != WaitSite::Kind::pair_begin &&
        wait.site.kind != WaitSite::Kind::pair_end) {
      return !ordered_without(wait.edge, edges_[wait.edge].from, edges_[wait.edge].to);
    }
    const std::vector<Edge>& uses = same_memory_.at(rank);
    return std::any_of(uses.begin(), uses.end(), [&](const Edge& use) {
      return !ordered_without(wait.edge, use.from, use.to);
    });
  }

 private:
  struct Edge {
    size_t from = 0;
    size_t to = 0;
  };

  // Whether `to` comes after `from` without that edge.
  bool ordered_without(size_t edge, size_t from, size_t to) const {
    std::vector<bool> seen(node_count_, false);
    std::vector<size_t> open = {from};
    while (!open.empty()) {
      const size_t node = open.back();
      open.pop_back();
      if (seen[node]) {
        continue;
      }
      seen[node] = true;
      for (const size_t next : out_[node]) {
        if (next != edge) {
          if (edges_[next].to == to) {
            return true;
          }
          open.push_back(edges_[next].to);
        }
      }
    }
    return false;
  }

  using SlotKey = std::tuple<int, int, bool>;  // channel, slot, outgoing side
  enum class Place { activation_slot, head_gradients, ends_of_step };
  using Memory = std::pair<Place, int>;  // number of the slot, else 0

  size_t add_node() {
    out_.emplace_back();
    return node_count_++;
  }
  size_t add_edge(size_t from, size_t to) {
    edges_.push_back({from, to});
    out_[from].push_back(edges_.size() - 1);
    return edges_.size() - 1;
  }
  // Appends a node to a stream.
  void append(int rank, int stream, size_t node) {
    std::map<int, size_t>& streams = streams_[rank];
    const auto last = streams.find(stream);
    if (last != streams.end()) {
      add_edge(last->second, node);
    }
    streams[stream] = node;
    for (const auto& [from, wait] : std::exchange(open_waits_[{rank, stream}], {})) {
      waits_[rank][wait].edge = add_edge(from, node);
    }
  }

  // What is appended to `stream` next waits for the last node of `other`.
  void wait_for_stream(int rank, int stream, int other, const WaitSite& site) {
    open_waits_[{rank, stream}].emplace_back(streams_[rank].at(other), waits_[rank].size());
    waits_[rank].push_back({site, no_edge});
  }

  // `node`, on the pair's second stream or not, uses a piece of memory.
  void use(int rank, const Memory& memory, size_t node, int stream) {
    const auto [last, first_use] = last_use_.try_emplace({rank, memory}, node, stream);
    if (!first_use) {
      if (last->second.second == second_stream || stream == second_stream) {
        same_memory_[rank].push_back({last->second.first, node});
      }
      last->second = {node, stream};
    }
  }

  // The k-th send of a channel meets the k-th receive.
  void number_transfers(int) {
    transfers_.clear();
    std::map<int, size_t> sends;
    std::map<int, size_t> receives;
    for (const auto& list : schedule_.ranks) {
      for (const LoweredAction& entry : list) {
        if (is_send(entry.action.kind)) {
          transfers_[{entry.message.channel, sends[entry.message.channel]++}] = add_node();
        }
      }
    }
  }

  void wait(int rank, const WaitSite& site, const std::map<SlotKey, size_t>& records, SlotKey key,
            size_t node) {
    const auto record = records.find(key);
    Wait wait{site, no_edge};
    if (record != records.end()) {
      wait.edge = add_edge(record->second, node);
    }
    waits_[rank].push_back(wait);
  }

  void add_list(int step, int rank) {
    if (step == 1) {
      waits_[rank].clear();
    }
    std::map<SlotKey, size_t>& ready = ready_[rank];
    std::map<SlotKey, size_t>& free = free_[rank];
    std::map<int, size_t> seen;  // messages per channel so far
    const auto& list = schedule_.ranks[size_t(rank)];
    std::vector<size_t> started(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const LoweredAction& entry = list[i];
      const Kind kind = entry.action.kind;
      if (is_send(kind)) {
        const int channel = entry.message.channel;
        const size_t node = transfers_.at({channel, seen[channel]++});
        const SlotKey key = {channel, entry.message.slot, true};
        append(rank, channel, node);
        wait(rank, {WaitSite::Kind::send_ready, i}, ready, key, node);
        free[key] = node;
      } else if (is_receive(kind)) {
        const int channel = entry.message.channel;
        const size_t node = transfers_.at({channel, seen[channel]++});
        const SlotKey key = {channel, entry.message.slot, false};
        append(rank, channel, node);
        wait(rank, {WaitSite::Kind::receive_free, i}, free, key, node);
        if (entry.gate >= 0) {
          const size_t edge = add_edge(started[size_t(entry.gate)], node);
          waits_[rank].push_back({{WaitSite::Kind::receive_gate, i}, edge});
        }
        ready[key] = node;
      } else if (is_compute(kind)) {
        const bool opens_pair = entry.action.overlaps_next;
        const bool closes_pair = i > 0 && list[i - 1].action.overlaps_next;
        if (opens_pair) {
          wait_for_stream(rank, second_stream, compute_stream, {WaitSite::Kind::pair_begin, i});
        }
        const bool beside = (opens_pair || closes_pair) && kind == Kind::forward;
        add_compute(rank, i, beside ? second_stream : compute_stream, &started[i]);
        if (closes_pair) {
          wait_for_stream(rank, compute_stream, second_stream, {WaitSite::Kind::pair_end, i});
        }
      }
    }
  }

  void add_compute(int rank, size_t i, int stream, size_t* started) {
    std::map<SlotKey, size_t>& ready = ready_[rank];
    std::map<SlotKey, size_t>& free = free_[rank];
    const LoweredAction& entry = schedule_.ranks[size_t(rank)][i];
    const auto key_of = [&](const schedule::SlotRef& slot, bool outgoing) {
      const schedule::Channel& channel = schedule_.channels[size_t(slot.channel)];
      return SlotKey{slot.channel, slot.slot, outgoing || channel.source == channel.destination};
    };
    const bool forward = entry.action.kind == Kind::forward;
    const Memory slot = {Place::activation_slot, entry.activation_slot};
    if (entry.input.channel >= 0) {  // the copy out of the message
      const size_t copy = add_node();
      append(rank, stream, copy);
      wait(rank, {WaitSite::Kind::input_ready, i}, ready, key_of(entry.input, false), copy);
      free[key_of(entry.input, false)] = copy;
      if (forward) {
        use(rank, slot, copy, stream);
      }
    }
    *started = add_node();
    append(rank, stream, *started);
    const size_t work = add_node();
    append(rank, stream, work);
    if (entry.output.channel >= 0) {
      wait(rank, {WaitSite::Kind::output_free, i}, free, key_of(entry.output, true), *started);
      ready[key_of(entry.output, true)] = work;
    }
    use(rank, slot, work, stream);
    if (forward) {
      use_in_step(rank, entry.action.stage, work, stream);
    }
  }

  // What an F uses beside its slot. Tokens and gradients are set at the begin of the step, weights
  // and gradients are used at its end.
  void use_in_step(int rank, int stage, size_t work, int stream) {
    const bool head = stage + 1 == schedule_.placement.stages();
    if (head) {
      use(rank, {Place::head_gradients, 0}, work, stream);
    }
    if (stream == second_stream) {
      if ((head || stage == 0) && last_barrier_ != no_node) {
        same_memory_[rank].push_back({last_barrier_, work});
      }
      beside_[rank].push_back(work);
    }
  }

  // The all-gather that ends a step: on the compute streams of all ranks.
  void add_barrier() {
    last_barrier_ = add_node();
    for (int rank = 0; rank < int(schedule_.ranks.size()); ++rank) {
      append(rank, compute_stream, last_barrier_);
      for (const size_t work : std::exchange(beside_[rank], {})) {
        same_memory_[rank].push_back({work, last_barrier_});
      }
    }
  }

  static constexpr int compute_stream = -1;  // a channel's number stands for its stream
  static constexpr int second_stream = -2;
  static constexpr size_t no_edge = size_t(-1);
  static constexpr size_t no_node = size_t(-1);

  const LoweredSchedule& schedule_;
  size_t node_count_ = 0;
  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> out_;
  std::map<std::pair<int, size_t>, size_t> transfers_;
  std::map<int, std::map<int, size_t>> streams_;
  std::map<int, std::map<SlotKey, size_t>> ready_;
  std::map<int, std::map<SlotKey, size_t>> free_;
  std::map<int, std::vector<Wait>> waits_;
  // By rank and the stream that waits: the node waited for and the number of the wait.
  std::map<std::pair<int, int>, std::vector<std::pair<size_t, size_t>>> open_waits_;
  std::map<std::pair<int, Memory>, std::pair<size_t, int>> last_use_;  // node and its stream
  std::map<int, std::vector<Edge>> same_memory_;  // by rank: operations that need an order
  std::map<int, std::vector<size_t>> beside_;     // of the step: the F on the second stream
  size_t last_barrier_ = no_node;
};

}  // namespace

std::string to_string(const WaitSite& site, const LoweredSchedule& schedule, int rank) {
  const char* kinds[] = {"input ready",  "output free",   "send ready", "receive free",
                         "receive gate", "begin of pair", "end of pair"};
  return fmt::format("rank {} {}: {}", rank,
                     to_string(schedule.ranks[size_t(rank)][site.entry].action),
                     kinds[size_t(site.kind)]);
}

std::vector<WaitSite> wait_sites(const LoweredSchedule& schedule, int rank) {
  const Order order(schedule);
  std::vector<WaitSite> sites;
  for (const Order::Wait& wait : order.waits(rank)) {
    sites.push_back(wait.site);
    sites.back().needed = order.needed(rank, wait);
  }
  return sites;
}

}  // namespace pipetrain::test
