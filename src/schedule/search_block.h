#pragma once

#include <cstddef>
#include <cstdint>

#include "schedule/search_policy.h"
#include "schedule/search_problem.h"

namespace pipetrain::schedule {

// Tries `runs` building blocks (search_hops.h) of the V placement with two chunks that fit into the
// smallest limit: list scheduling in a block's order gives the words. Infinite cost and no words
// where there is no block or all of them deadlock.
Candidate search_blocks(const Problem& problem, size_t runs, std::uint64_t seed);

}  // namespace pipetrain::schedule
