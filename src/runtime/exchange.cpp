#include "pipetrain/runtime/exchange.h"

#include <fmt/format.h>

#include "pipetrain/comm/warm_up.h"
#include "pipetrain/error.h"

namespace pipetrain {

namespace {

constexpr Tag never_used = {0, -1, -1};

}  // namespace

size_t Exchange::bytes(const schedule::LoweredSchedule& schedule, int rank, size_t message_bytes) {
  size_t slots = 0;
  for (const schedule::Channel& channel : schedule.channels) {
    slots += channel.source == rank ? size_t(channel.outgoing_slots) : 0;
    slots += channel.destination == rank ? size_t(channel.incoming_slots) : 0;
  }
  return slots * aligned(message_bytes);
}

Exchange::Exchange(const schedule::LoweredSchedule& schedule, const Grid& grid, Control& control,
                   size_t message_bytes, Region& region, const std::shared_ptr<Stream>& stream,
                   Watchdog* watchdog)
    : message_bytes_(message_bytes), ends_(schedule.channels.size()) {
  const int rank = grid.pipeline_rank();
  const auto make_slots = [&](int count) {
    std::vector<Slot> slots;
    for (int i = 0; i < count; ++i) {
      slots.push_back({region.take_bytes(message_bytes), Event(), Event(), never_used});
      slots.back().free.record(set_up_, never_used);
    }
    return slots;
  };
  std::vector<Edge> edges;
  std::vector<size_t> channel_of_edge;
  for (size_t i = 0; i < schedule.channels.size(); ++i) {
    const schedule::Channel& channel = schedule.channels[i];
    if (channel.source != channel.destination) {
      edges.push_back({channel.source, channel.destination});
      channel_of_edge.push_back(i);
    }
    if (channel.source == rank || channel.destination == rank) {
      ends_[i] = std::make_unique<End>();
    }
    if (channel.source == rank) {
      ends_[i]->outgoing = make_slots(channel.outgoing_slots);
    }
    if (channel.destination == rank) {
      ends_[i]->incoming = make_slots(channel.incoming_slots);
    }
  }
  set_up_.synchronize();

  // All ranks pass the channels in the same rounds: the first use of one waits on the host for its
  // peer.
  for (const std::vector<size_t>& round : pairing_rounds(edges)) {
    for (const size_t edge : round) {
      End* end = ends_[channel_of_edge[edge]].get();
      if (end != nullptr) {
        const auto [source, destination] = edges[edge];
        const Watchdog::HostPhase phase(watchdog,
                                        fmt::format("rank {} connects with rank {}", rank,
                                                    source == rank ? destination : source));
        end->channel =
            std::make_unique<Channel>(control, grid.peer(source), grid.peer(destination), stream);
        const std::vector<Slot>& slots = end->channel->is_source() ? end->outgoing : end->incoming;
        warm_up(*end->channel, slots.front().data, message_bytes);
      }
    }
  }
}

Exchange::End& Exchange::end_of(const schedule::SlotRef& slot) {
  if (slot.channel < 0 || size_t(slot.channel) >= ends_.size() || !ends_[size_t(slot.channel)]) {
    throw InternalError("exchange: this rank is no end of the channel");
  }
  return *ends_[size_t(slot.channel)];
}

Exchange::Slot& Exchange::outgoing(const schedule::SlotRef& slot) {
  return end_of(slot).outgoing.at(size_t(slot.slot));
}

// What a consumer reads: a hand-off inside the rank has outgoing slots only.
Exchange::Slot& Exchange::readable(const schedule::SlotRef& slot) {
  End& end = end_of(slot);
  return (end.channel ? end.incoming : end.outgoing).at(size_t(slot.slot));
}

void Exchange::send(const schedule::SlotRef& ref, const Tag& tag, Event& started, Event& ended) {
  Slot& slot = outgoing(ref);
  Channel& channel = *end_of(ref).channel;
  slot.ready.wait(channel.stream(), tag);
  started.record(channel.stream(), tag);
  channel.send(slot.data, message_bytes_);
  slot.free.record(channel.stream(), tag);
  ended.record(channel.stream(), tag);
}

void Exchange::receive(const schedule::SlotRef& ref, const Tag& tag, const Event* gate,
                       const Tag& gate_tag, Event& started, Event& ended) {
  Slot& slot = readable(ref);
  Channel& channel = *end_of(ref).channel;
  slot.free.wait(channel.stream(), slot.content);
  if (gate != nullptr) {
    gate->wait(channel.stream(), gate_tag);
  }
  started.record(channel.stream(), tag);
  channel.receive(slot.data, message_bytes_);
  slot.ready.record(channel.stream(), tag);
  slot.content = tag;
  ended.record(channel.stream(), tag);
}

const std::byte* Exchange::begin_read(const schedule::SlotRef& ref, const Tag& tag,
                                      const Stream& compute) {
  Slot& slot = readable(ref);
  slot.ready.wait(compute, tag);
  return slot.data;
}

void Exchange::end_read(const schedule::SlotRef& ref, const Tag& tag, const Stream& compute) {
  readable(ref).free.record(compute, tag);
}

std::byte* Exchange::begin_write(const schedule::SlotRef& ref, const Stream& compute) {
  Slot& slot = outgoing(ref);
  slot.free.wait(compute, slot.content);
  return slot.data;
}

void Exchange::end_write(const schedule::SlotRef& ref, const Tag& tag, const Stream& compute) {
  Slot& slot = outgoing(ref);
  slot.ready.record(compute, tag);
  slot.content = tag;
}

ncclResult_t Exchange::async_error() const {
  for (const std::unique_ptr<End>& end : ends_) {
    if (end && end->channel) {
      if (const ncclResult_t result = end->channel->async_error(); result != ncclSuccess) {
        return result;
      }
    }
  }
  return ncclSuccess;
}

}  // namespace pipetrain
