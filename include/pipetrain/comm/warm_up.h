#pragma once

#include <cstddef>

#include "pipetrain/comm/channel.h"

namespace pipetrain {

// Connects both ends of a channel: NCCL connects at the first message, on the host, until the peer
// calls too, and again when a message's size asks for another protocol. One message of one byte and
// one of `bytes` go through; then the host waits for both. `data`: `bytes` of device memory, at the
// destination overwritten. Ranks warm up their channels in the order of pairing_rounds().
void warm_up(Channel& channel, std::byte* data, size_t bytes);

// The same for a collective: an all-gather of `bytes` per rank; data: size() * bytes.
void warm_up(Communicator& communicator, std::byte* data, size_t bytes, const Stream& stream);

}  // namespace pipetrain
