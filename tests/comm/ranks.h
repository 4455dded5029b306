#pragma once

#include <cstddef>
#include <vector>

#include "support/rank_threads.h"

namespace pipetrain {

using test::run_ranks;

// Device memory from and to the host.
void copy_to_device(std::byte* to, const std::vector<std::byte>& from);
std::vector<std::byte> copy_to_host(const std::byte* from, size_t bytes);

// Bytes that tell who sent them, what for and where in the message they are.
std::vector<std::byte> message(int source, int kind, int number, size_t bytes);

}  // namespace pipetrain
