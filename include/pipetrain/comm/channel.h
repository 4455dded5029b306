#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "pipetrain/comm/communicator.h"
#include "pipetrain/device/stream.h"

namespace pipetrain {

// A directed edge between two ranks of the job.
struct Edge {
  int source = 0;
  int destination = 0;
};

// Indices into `edges`, cut into rounds in which a rank has at most one peer. Ranks that create or
// warm up their channels in this order never wait in a circle, and pairs of a round run at once.
std::vector<std::vector<size_t>> pairing_rounds(std::span<const Edge> edges);

// One end of a directed edge: a two-rank communicator and its own high-priority stream. The source
// only sends, the destination only receives.
class Channel {
 public:
  // Collective over source and destination (job ranks, different ones), in the global order of
  // pairing_rounds(). With `stream` the channel uses that one instead of its own: see
  // transfers_need_one_stream().
  Channel(Control& control, int source, int destination, std::shared_ptr<Stream> stream = nullptr);

  const Stream& stream() const { return *stream_; }
  bool is_source() const { return is_source_; }
  int peer() const { return peer_; }  // job rank
  // Asynchronous on stream(). The wrong end throws InternalError.
  void send(const void* data, size_t bytes);
  void receive(void* data, size_t bytes);
  ncclResult_t async_error() const noexcept { return communicator_.async_error(); }

 private:
  std::shared_ptr<Stream> stream_;  // outlives the communicator
  Communicator communicator_;
  bool is_source_;
  int peer_;
};

// Below NCCL 2.26 kernels of several communicators on one device may start in different orders on
// different ranks and wait for each other: there all transfers of a rank go through one stream, in
// list order.
bool transfers_need_one_stream();

}  // namespace pipetrain
