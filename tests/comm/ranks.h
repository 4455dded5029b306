#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "pipetrain/comm/control.h"

namespace pipetrain {

// Runs `body` as `ranks` threads of this process, each with its own device (devices repeat when
// there are fewer). When one throws, the group is aborted and the first error is thrown again.
void run_ranks(int ranks, const std::function<void(Control&)>& body);

// Device memory from and to the host.
void copy_to_device(std::byte* to, const std::vector<std::byte>& from);
std::vector<std::byte> copy_to_host(const std::byte* from, size_t bytes);

// Bytes that tell who sent them, what for and where in the message they are.
std::vector<std::byte> message(int source, int kind, int number, size_t bytes);

}  // namespace pipetrain
