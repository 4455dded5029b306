#include "pipetrain/comm/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// NCCL moves messages of a few MiB between two H100 with 2 to 8 thread blocks; more would only take
// multiprocessors from the kernels that run beside.
constexpr int max_ctas = 8;

std::vector<int> ends(int source, int destination) {
  if (source == destination) {
    throw InternalError(fmt::format("a channel from rank {} to itself", source));
  }
  return {source, destination};
}

}  // namespace

std::vector<std::vector<size_t>> pairing_rounds(std::span<const Edge> edges) {
  std::vector<std::vector<size_t>> rounds;
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto meets = [&](size_t j) {
      return edges[i].source == edges[j].source || edges[i].source == edges[j].destination ||
             edges[i].destination == edges[j].source ||
             edges[i].destination == edges[j].destination;
    };
    const auto round = std::find_if(rounds.begin(), rounds.end(), [&](const auto& other) {
      return std::none_of(other.begin(), other.end(), meets);
    });
    if (round == rounds.end()) {
      rounds.push_back({i});
    } else {
      round->push_back(i);
    }
  }
  return rounds;
}

Channel::Channel(Control& control, int source, int destination, std::shared_ptr<Stream> stream)
    : stream_(stream ? std::move(stream) : std::make_shared<Stream>(StreamPriority::high)),
      communicator_(control, ends(source, destination), max_ctas),
      is_source_(control.rank() == source),
      peer_(is_source_ ? destination : source) {}

void Channel::send(const void* data, size_t bytes) {
  if (!is_source_) {
    throw InternalError(fmt::format("send on the receiving end of a channel from rank {}", peer_));
  }
  communicator_.send(data, bytes, 1, *stream_);
}

void Channel::receive(void* data, size_t bytes) {
  if (is_source_) {
    throw InternalError(fmt::format("receive on the sending end of a channel to rank {}", peer_));
  }
  communicator_.receive(data, bytes, 0, *stream_);
}

bool transfers_need_one_stream() {
  constexpr int launch_order_since = 22600;
  return nccl_version() < launch_order_since;
}

}  // namespace pipetrain
