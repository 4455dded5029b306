#include "pipetrain/comm/grid.h"

#include <gtest/gtest.h>

#include <string>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

TEST(Grid, RanksOfOnePipelineAreDApart) {
  const Grid grid = make_grid(8, 5, 2);
  EXPECT_EQ(grid.pipeline, 4);
  EXPECT_EQ(grid.replicas, 2);
  EXPECT_EQ(grid.pipeline_rank(), 2);
  EXPECT_EQ(grid.replica(), 1);
  EXPECT_EQ(grid.peer(0), 1);
  EXPECT_EQ(grid.peer(3), 7);
}

// Fault 10: an exchange of a second pipeline uses the first one's ranks.
TEST(Grid, EveryRankIsThePeerOfItsOwnPipelineOnly) {
  for (int rank = 0; rank < 12; ++rank) {
    const Grid grid = make_grid(12, rank, 3);
    EXPECT_EQ(grid.peer(grid.pipeline_rank()), rank);
    for (int other = 0; other < grid.pipeline; ++other) {
      EXPECT_EQ(make_grid(12, grid.peer(other), 3).replica(), grid.replica());
    }
  }
}

TEST(Grid, DataParallelThatDoesNotDivideTheRanksIsAUsageError) {
  for (const int data_parallel : {-1, 0, 3, 16}) {
    try {
      make_grid(8, 0, data_parallel);
      FAIL() << data_parallel;
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("--data-parallel " + std::to_string(data_parallel)), std::string::npos);
      EXPECT_NE(text.find("8 ranks"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace pipetrain
