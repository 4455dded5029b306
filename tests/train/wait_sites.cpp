#include "train/wait_sites.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace pipetrain::test {
namespace {

using schedule::Kind;
using schedule::LoweredAction;
using schedule::LoweredSchedule;

// What happens before what, over two steps of all ranks. A node is an operation of a stream; a
// transfer is one node of both its streams, for it ends when both sides have come to it.
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

  // Whether the edge's end comes after its beginning without the edge itself.
  bool implied(size_t edge) const {
    std::vector<bool> seen(node_count_, false);
    std::vector<size_t> open = {edges_[edge].from};
    while (!open.empty()) {
      const size_t node = open.back();
      open.pop_back();
      if (seen[node]) {
        continue;
      }
      seen[node] = true;
      for (const size_t next : out_[node]) {
        if (next != edge) {
          if (edges_[next].to == edges_[edge].to) {
            return true;
          }
          open.push_back(edges_[next].to);
        }
      }
    }
    return false;
  }

 private:
  struct Edge {
    size_t from = 0;
    size_t to = 0;
  };
  using SlotKey = std::tuple<int, int, bool>;  // channel, slot, outgoing side

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
  void append(std::map<int, size_t>* streams, int stream, size_t node) {
    const auto last = streams->find(stream);
    if (last != streams->end()) {
      add_edge(last->second, node);
    }
    (*streams)[stream] = node;
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
    std::map<int, size_t>& streams = streams_[rank];  // -1: compute; else the channel's
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
        append(&streams, channel, node);
        wait(rank, {WaitSite::Kind::send_ready, i}, ready, key, node);
        free[key] = node;
      } else if (is_receive(kind)) {
        const int channel = entry.message.channel;
        const size_t node = transfers_.at({channel, seen[channel]++});
        const SlotKey key = {channel, entry.message.slot, false};
        append(&streams, channel, node);
        wait(rank, {WaitSite::Kind::receive_free, i}, free, key, node);
        if (entry.gate >= 0) {
          const size_t edge = add_edge(started[size_t(entry.gate)], node);
          waits_[rank].push_back({{WaitSite::Kind::receive_gate, i}, edge});
        }
        ready[key] = node;
      } else if (is_compute(kind)) {
        add_compute(rank, i, &streams, &ready, &free, &started[i]);
      }
    }
  }

  void add_compute(int rank, size_t i, std::map<int, size_t>* streams,
                   std::map<SlotKey, size_t>* ready, std::map<SlotKey, size_t>* free,
                   size_t* started) {
    const LoweredAction& entry = schedule_.ranks[size_t(rank)][i];
    const auto key_of = [&](const schedule::SlotRef& slot, bool outgoing) {
      const schedule::Channel& channel = schedule_.channels[size_t(slot.channel)];
      return SlotKey{slot.channel, slot.slot, outgoing || channel.source == channel.destination};
    };
    if (entry.input.channel >= 0) {  // the copy out of the message
      const size_t copy = add_node();
      append(streams, compute_stream, copy);
      wait(rank, {WaitSite::Kind::input_ready, i}, *ready, key_of(entry.input, false), copy);
      (*free)[key_of(entry.input, false)] = copy;
    }
    *started = add_node();
    append(streams, compute_stream, *started);
    const size_t work = add_node();
    append(streams, compute_stream, work);
    if (entry.output.channel >= 0) {
      wait(rank, {WaitSite::Kind::output_free, i}, *free, key_of(entry.output, true), *started);
      (*ready)[key_of(entry.output, true)] = work;
    }
  }

  // The all-gather that ends a step: on the compute streams of all ranks.
  void add_barrier() {
    const size_t node = add_node();
    for (auto& [rank, streams] : streams_) {
      append(&streams, compute_stream, node);
    }
  }

  static constexpr int compute_stream = -1;
  static constexpr size_t no_edge = size_t(-1);

  const LoweredSchedule& schedule_;
  size_t node_count_ = 0;
  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> out_;
  std::map<std::pair<int, size_t>, size_t> transfers_;
  std::map<int, std::map<int, size_t>> streams_;
  std::map<int, std::map<SlotKey, size_t>> ready_;
  std::map<int, std::map<SlotKey, size_t>> free_;
  std::map<int, std::vector<Wait>> waits_;
};

}  // namespace

std::string to_string(const WaitSite& site, const LoweredSchedule& schedule, int rank) {
  const char* kinds[] = {"input ready", "output free", "send ready", "receive free",
                         "receive gate"};
  return fmt::format("rank {} {}: {}", rank,
                     to_string(schedule.ranks[size_t(rank)][site.entry].action),
                     kinds[size_t(site.kind)]);
}

std::vector<WaitSite> wait_sites(const LoweredSchedule& schedule, int rank) {
  const Order order(schedule);
  std::vector<WaitSite> sites;
  for (const Order::Wait& wait : order.waits(rank)) {
    sites.push_back(wait.site);
    sites.back().needed = wait.edge != size_t(-1) && !order.implied(wait.edge);
  }
  return sites;
}

}  // namespace pipetrain::test
