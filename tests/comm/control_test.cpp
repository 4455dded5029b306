#include "pipetrain/comm/control.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "control_checks.h"
#include "pipetrain/error.h"
#include "ranks.h"

namespace pipetrain {
namespace {

class ThreadGroups : public testing::TestWithParam<int> {};

TEST_P(ThreadGroups, EveryOperationReachesEveryRank) {
  run_ranks(GetParam(), [](Control& control) { EXPECT_EQ(check_control(control), ""); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadGroups, testing::Values(1, 2, 3, 8));

TEST(ThreadGroup, ABarrierHoldsBackEveryRank) {
  std::atomic<int> arrived = 0;
  run_ranks(8, [&](Control& control) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      control.barrier();
      EXPECT_GE(arrived, 8 * round);
      control.barrier();
    }
  });
}

TEST(ThreadGroup, WhenOneRankFailsTheWaitingOnesAreToldAndTheFirstErrorIsKept) {
  std::atomic<int> told = 0;
  const auto body = [&](Control& control) {
    if (control.rank() == 2) {
      throw UsageError("rank 2 fails");
    }
    try {
      if (control.rank() == 0) {
        control.barrier();
      } else {
        control.receive(2);
      }
    } catch (const PeerLost&) {
      ++told;
      throw;
    }
  };
  EXPECT_THROW(run_ranks(4, body), UsageError);
  EXPECT_EQ(told, 3);
}

TEST(ThreadGroup, ARankOutsideTheGroupHasNoControl) {
  ThreadGroup group(2);
  EXPECT_THROW(group.control(2), std::out_of_range);
}

}  // namespace
}  // namespace pipetrain
