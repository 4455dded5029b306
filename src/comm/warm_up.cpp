#include "pipetrain/comm/warm_up.h"

#include <algorithm>

namespace pipetrain {
namespace {

size_t tiny(size_t bytes) {
  return std::min(bytes, size_t(1));
}

}  // namespace

void warm_up(Channel& channel, std::byte* data, size_t bytes) {
  for (const size_t message : {tiny(bytes), bytes}) {
    if (channel.is_source()) {
      channel.send(data, message);
    } else {
      channel.receive(data, message);
    }
  }
  channel.stream().synchronize();
}

void warm_up(Communicator& communicator, std::byte* data, size_t bytes, const Stream& stream) {
  for (const size_t message : {tiny(bytes), bytes}) {
    communicator.all_gather(data, data + size_t(communicator.rank()) * message, message, stream);
  }
  stream.synchronize();
}

}  // namespace pipetrain
