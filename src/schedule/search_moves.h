#pragma once

#include <cstddef>
#include <cstdint>

#include "schedule/search_policy.h"
#include "schedule/search_problem.h"

namespace pipetrain::schedule {

// Simulated annealing: moves letters of the critical path to other places of their words, `moves`
// times. Returns the best words found, never worse than `start`; stops at problem.least.
Candidate anneal(const Problem& problem, const Candidate& start, size_t moves, std::uint64_t seed);

}  // namespace pipetrain::schedule
