#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace pipetrain {

// A part of a mapped file that is no longer there, because it was truncated or its disk failed,
// ends whoever reads it with SIGBUS. From now on such a fault inside `bytes` prints `message` as
// one line on standard error and leaves with exit code 1; faults elsewhere stay what they were.
class GuardedMapping;
GuardedMapping* guard_mapping(std::span<const std::byte> bytes, const std::string& message);
// Before the bytes are unmapped.
void unguard_mapping(GuardedMapping* mapping);

}  // namespace pipetrain
