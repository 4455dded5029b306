#pragma once

#include <memory>

#include "pipetrain/comm/communicator.h"
#include "pipetrain/device/stream.h"

namespace pipetrain {

// One end of a directed edge: a two-rank communicator and its own high-priority stream. The source
// only sends, the destination only receives.
class Channel {
 public:
  // Collective over source and destination (job ranks).
  Channel(Control& control, int source, int destination);

  const Stream& stream() const { return stream_; }
  bool is_source() const { return is_source_; }
  int peer() const { return peer_; }  // job rank
  void send(const void* data, size_t bytes);     // asynchronous on stream()
  void receive(void* data, size_t bytes);        // asynchronous on stream()
  ncclResult_t async_error() const { return communicator_.async_error(); }

 private:
  Communicator communicator_;
  Stream stream_;
  bool is_source_;
  int peer_;
};

}  // namespace pipetrain
