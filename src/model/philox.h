#pragma once

#include <array>
#include <cstdint>

namespace pipetrain {

// Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four random
// words for a counter of four words and a key of two.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace pipetrain
