#pragma once

#include <memory>
#include <vector>

#include "pipetrain/comm/channel.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/comm/grid.h"
#include "pipetrain/device/event.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/schedule/schedule.h"

namespace pipetrain {

// The messages of one rank: the channels it is an end of and their slots. Every slot has two
// events. `ready`: its content may be read; `free`: it may be overwritten. Waiting is done by
// streams, never by the host.
class Exchange {
 public:
  // Device memory for the slots of `rank`.
  static size_t bytes(const schedule::LoweredSchedule& schedule, int rank, size_t message_bytes);

  // Connects and warms up every channel, in one global order: collective over the pipeline. `grid`
  // maps pipeline ranks to the job's. `stream`: for all transfers; null: each channel has its own.
  // See transfers_need_one_stream(). `watchdog` (may be null) has a deadline for each connection
  // and names the peer that was waited for.
  Exchange(const schedule::LoweredSchedule& schedule, const Grid& grid, Control& control,
           size_t message_bytes, Region& region, const std::shared_ptr<Stream>& stream = nullptr,
           Watchdog* watchdog = nullptr);

  // Transfers, on the channel's own stream, with `started` and `ended` recorded around them. `slot`
  // is the action's message. `gate` (may be null) must have been recorded for gate_tag.
  void send(const schedule::SlotRef& slot, const Tag& tag, Event& started, Event& ended);
  void receive(const schedule::SlotRef& slot, const Tag& tag, const Event* gate,
               const Tag& gate_tag, Event& started, Event& ended);

  // A consumer on stream `compute`: waits until the message is there; frees the slot.
  const std::byte* begin_read(const schedule::SlotRef& slot, const Tag& tag, const Stream& compute);
  void end_read(const schedule::SlotRef& slot, const Tag& tag, const Stream& compute);
  // A producer: waits until the slot is free; marks it ready.
  std::byte* begin_write(const schedule::SlotRef& slot, const Stream& compute);
  void end_write(const schedule::SlotRef& slot, const Tag& tag, const Stream& compute);

  // The first asynchronous error of any channel, or ncclSuccess. For the watchdog.
  ncclResult_t async_error() const;

 private:
  struct Slot {
    std::byte* data = nullptr;
    Event ready;  // its content may be read
    Event free;   // it may be overwritten
    Tag content;  // what was last written
  };
  struct End {
    std::unique_ptr<Channel> channel;  // null for a hand-off inside the rank
    std::vector<Slot> outgoing;
    std::vector<Slot> incoming;
  };
  End& end_of(const schedule::SlotRef& slot);
  Slot& outgoing(const schedule::SlotRef& slot);
  Slot& readable(const schedule::SlotRef& slot);

  Stream set_up_;
  size_t message_bytes_;
  std::vector<std::unique_ptr<End>> ends_;  // by channel index; null where this rank is no end
};

}  // namespace pipetrain
