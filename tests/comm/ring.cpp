#include "ring.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <vector>

#include "pipetrain/comm/channel.h"
#include "pipetrain/comm/warm_up.h"
#include "pipetrain/device/memory.h"
#include "ranks.h"

namespace pipetrain {
namespace {

enum Direction : int { forward = 0, backward = 1 };

struct Transfer {
  Edge edge;
  Direction direction;
};

// One end of a channel on this rank, with a buffer for each message.
struct End {
  End(Control& control, const Edge& edge, const RingOptions& options,
      std::shared_ptr<Stream> stream)
      : channel(control, edge.source, edge.destination, std::move(stream)) {
    for (int i = 0; i < options.messages; ++i) {
      buffers.emplace_back(options.bytes);
    }
  }
  Channel channel;
  std::vector<Buffer> buffers;
};

std::vector<Transfer> ring(int ranks) {
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < ranks; ++rank) {
    const int next = (rank + 1) % ranks;
    transfers.push_back({{rank, next}, forward});
    transfers.push_back({{next, rank}, backward});
  }
  return transfers;
}

}  // namespace

std::string check_ring_of_channels(Control& control, const RingOptions& options) {
  const std::vector<Transfer> transfers = ring(control.size());
  std::vector<Edge> edges;
  for (const Transfer& transfer : transfers) {
    edges.push_back(transfer.edge);
  }
  std::vector<size_t> own;  // in the global order
  for (const std::vector<size_t>& round : pairing_rounds(edges)) {
    for (const size_t i : round) {
      if (edges[i].source == control.rank() || edges[i].destination == control.rank()) {
        own.push_back(i);
      }
    }
  }

  const std::shared_ptr<Stream> shared =
      options.one_stream_per_rank ? std::make_shared<Stream>(StreamPriority::high) : nullptr;
  std::map<size_t, std::unique_ptr<End>> ends;
  for (const size_t i : own) {
    ends[i] = std::make_unique<End>(control, edges[i], options, shared);
  }
  for (const size_t i : own) {
    warm_up(ends[i]->channel, ends[i]->buffers.front().data(), options.bytes);
    if (cudaStreamQuery(ends[i]->channel.stream().get()) != cudaSuccess) {
      return "warm_up() returned before its messages had arrived";
    }
  }

  for (const size_t i : own) {
    for (int n = 0; ends[i]->channel.is_source() && n < options.messages; ++n) {
      copy_to_device(ends[i]->buffers[size_t(n)].data(),
                     message(control.rank(), transfers[i].direction, n, options.bytes));
    }
  }
  for (int n = 0; n < options.messages; ++n) {
    for (const size_t i : own) {
      std::byte* const data = ends[i]->buffers[size_t(n)].data();
      if (ends[i]->channel.is_source()) {
        ends[i]->channel.send(data, options.bytes);
      } else {
        ends[i]->channel.receive(data, options.bytes);
      }
    }
  }
  for (const size_t i : own) {
    ends[i]->channel.stream().synchronize();
    const int source = ends[i]->channel.is_source() ? control.rank() : ends[i]->channel.peer();
    for (int n = 0; n < options.messages; ++n) {
      if (copy_to_host(ends[i]->buffers[size_t(n)].data(), options.bytes) !=
          message(source, transfers[i].direction, n, options.bytes)) {
        return fmt::format("rank {}: {} message {} from rank {} is wrong", control.rank(),
                           transfers[i].direction == forward ? "forward" : "backward", n, source);
      }
    }
  }
  control.barrier();
  return "";
}

}  // namespace pipetrain
