#include "pipetrain/runtime/exchange.h"

#include <algorithm>

#include "pipetrain/error.h"

namespace pipetrain {

namespace {

constexpr Tag never_used = {0, -1, -1};
constexpr size_t tiny_message = 16;  // bytes

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
                   size_t message_bytes, Region& region)
    : message_bytes_(message_bytes) {
  const int rank = grid.pipeline_rank();
  const auto make_slots = [&](int count, const Stream& stream) {
    std::vector<Slot> slots;
    for (int i = 0; i < count; ++i) {
      slots.push_back({region.take_bytes(message_bytes), Event(), Event(), never_used});
      slots.back().free.record(stream, never_used);
    }
    return slots;
  };
  for (const schedule::Channel& channel : schedule.channels) {
    edges_.push_back(nullptr);
    if (channel.source != rank && channel.destination != rank) {
      continue;
    }
    edges_.back() = std::make_unique<Edge>();
    Edge& edge = *edges_.back();
    if (channel.source != channel.destination) {
      edge.channel = std::make_unique<Channel>(control, grid.peer(channel.source),
                                               grid.peer(channel.destination));
    }
    const Stream& stream = edge.channel ? edge.channel->stream() : set_up_;
    if (channel.source == rank) {
      edge.outgoing = make_slots(channel.outgoing_slots, stream);
    }
    if (channel.destination == rank) {
      edge.incoming = make_slots(channel.incoming_slots, stream);
    }
  }
  warm_up();
}

// Every rank passes its channels in the same global order, so that the blocking first use of one
// cannot wait in a circle.
void Exchange::warm_up() {
  for (const std::unique_ptr<Edge>& edge : edges_) {
    if (!edge || !edge->channel) {
      continue;
    }
    for (const size_t bytes : {std::min(tiny_message, message_bytes_), message_bytes_}) {
      if (edge->channel->is_source()) {
        edge->channel->send(edge->outgoing.front().data, bytes);
      } else {
        edge->channel->receive(edge->incoming.front().data, bytes);
      }
    }
    edge->channel->stream().synchronize();
  }
}

Exchange::Edge& Exchange::edge_of(const schedule::SlotRef& slot) {
  if (slot.channel < 0 || size_t(slot.channel) >= edges_.size() || !edges_[size_t(slot.channel)]) {
    throw InternalError("exchange: this rank is no end of the channel");
  }
  return *edges_[size_t(slot.channel)];
}

Exchange::Slot& Exchange::outgoing(const schedule::SlotRef& slot) {
  return edge_of(slot).outgoing.at(size_t(slot.slot));
}

// What a consumer reads: a hand-off inside the rank has outgoing slots only.
Exchange::Slot& Exchange::readable(const schedule::SlotRef& slot) {
  Edge& edge = edge_of(slot);
  return (edge.channel ? edge.incoming : edge.outgoing).at(size_t(slot.slot));
}

void Exchange::send(const schedule::SlotRef& ref, const Tag& tag, Event& started, Event& ended) {
  Slot& slot = outgoing(ref);
  Channel& channel = *edge_of(ref).channel;
  slot.ready.wait(channel.stream(), tag);
  started.record(channel.stream(), tag);
  channel.send(slot.data, message_bytes_);
  slot.free.record(channel.stream(), tag);
  ended.record(channel.stream(), tag);
}

void Exchange::receive(const schedule::SlotRef& ref, const Tag& tag, const Event* gate,
                       const Tag& gate_tag, Event& started, Event& ended) {
  Slot& slot = readable(ref);
  Channel& channel = *edge_of(ref).channel;
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
  for (const std::unique_ptr<Edge>& edge : edges_) {
    if (edge && edge->channel) {
      if (const ncclResult_t result = edge->channel->async_error(); result != ncclSuccess) {
        return result;
      }
    }
  }
  return ncclSuccess;
}

}  // namespace pipetrain
