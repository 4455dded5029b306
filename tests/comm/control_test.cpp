#include "pipetrain/comm/control.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

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

// Who is missing is known: to rank 0 the rank, to the others rank 0.
TEST(ThreadGroup, ABarrierKnowsWhomItWaitsFor) {
  ThreadGroup group(3);
  std::vector<std::thread> early;
  for (const int rank : {0, 1}) {
    early.emplace_back([&group, rank] { group.control(rank).barrier(); });
  }
  const auto start = std::chrono::steady_clock::now();
  while ((group.control(0).awaited() != 2 || group.control(1).awaited() != 0) &&
         std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(group.control(0).awaited(), 2);
  EXPECT_EQ(group.control(1).awaited(), 0);
  group.control(2).barrier();
  for (std::thread& thread : early) {
    thread.join();
  }
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
