#pragma once

#include <cuda_runtime.h>

#include <compare>
#include <cstdint>

#include "pipetrain/device/stream.h"

namespace pipetrain {

// What a record of an event stands for.
struct Tag {
  int64_t step = 0;
  int stage = 0;
  int microbatch = 0;
  friend auto operator<=>(const Tag&, const Tag&) = default;
};

// A CUDA event that knows what it was last recorded for. CUDA lets a wait silently use an older
// record, or none at all; here a wait whose tag is not the last recorded one throws InternalError.
// Used from one host thread, but for done(), which any thread may call.
class Event {
 public:
  enum class Timing { off, on };
  explicit Event(Timing timing = Timing::off);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;

  void record(const Stream& stream, const Tag& tag);
  void wait(const Stream& stream, const Tag& tag) const;  // the stream waits, never the host

  bool done() const;         // true if nothing was recorded
  void synchronize() const;  // the host waits
  // Both events with Timing::on, recorded and done.
  double milliseconds_since(const Event& earlier) const;
  const Tag& tag() const { return tag_; }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  bool recorded_ = false;
  Tag tag_;
};

}  // namespace pipetrain
