#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/search_problem.h"

namespace pipetrain::schedule {

// Words, what they cost and how they were found.
struct Candidate {
  Words words;
  Cost cost;
  std::string origin;
};

void best_first(std::vector<Candidate>& candidates, size_t keep);

// Searches among policies of list scheduling (search_list.h): first at random, then by changing the
// best ones as a whole, then rank by rank. Policies are made up or follow the order of `sources`,
// words that need not fit. `runs` is how many are tried in all. Returns the best of every group
// that was followed, or nothing where every policy deadlocks.
std::vector<Candidate> search_policies(const Problem& problem, const std::vector<Words>& sources,
                                       size_t runs, std::uint64_t seed);

}  // namespace pipetrain::schedule
