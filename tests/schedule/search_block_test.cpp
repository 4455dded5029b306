#include "schedule/search_block.h"

#include <gtest/gtest.h>

#include "schedule/search_problem.h"
#include "support.h"

namespace pipetrain::schedule {
namespace {

// Below 2p chunks, where zb-v has no bubble: blocks alone, before anything is moved.
void expect_frontier(int ranks) {
  constexpr size_t kRuns = 1500;
  for (int held = 2 * ((ranks + 4) / 3); held < 2 * ranks; ++held) {
    for (const int microbatches : {2 * ranks, 2 * ranks + 5, 4 * ranks}) {
      SearchRequest request;
      request.ranks = ranks;
      request.microbatches = microbatches;
      request.costs = times(2, 2, 2);
      request.activation_limit = {held / 2.0};
      request.objective = Objective::span;
      Problem problem(request, Placement::Kind::v, 2);
      problem.least = 6 * microbatches + v_frontier(ranks, held);  // ends the search
      const std::string what = "p=" + std::to_string(ranks) + " m=" + std::to_string(microbatches) +
                               " M=" + std::to_string(held);
      const Candidate found = search_blocks(problem, kRuns, 1);
      EXPECT_LE(found.cost.objective, problem.least + 1e-9) << what;
      for (int r = 0; r < ranks && !found.words.empty(); ++r) {
        EXPECT_TRUE(is_legal(problem, found.words[size_t(r)], r)) << what;
      }
    }
  }
}

TEST(SearchBlock, ReachesTheMemoryFrontierOfTheVPlacement) {
  for (int ranks = 4; ranks <= 10; ++ranks) {
    expect_frontier(ranks);
  }
}

TEST(SweepSearchBlock, ReachesTheMemoryFrontierOfTheVPlacement) {
  for (int ranks = 11; ranks <= 16; ++ranks) {
    expect_frontier(ranks);
  }
}

TEST(SearchBlock, NoBlockHasNoWords) {
  SearchRequest request;
  request.ranks = 8;
  request.microbatches = 16;
  request.costs = times(2, 2, 2);
  request.activation_limit = {1};
  EXPECT_TRUE(search_blocks(Problem(request, Placement::Kind::v, 2), 10, 1).words.empty());
}

}  // namespace
}  // namespace pipetrain::schedule
