#include "pipetrain/comm/agree.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

#include "pipetrain/error.h"
#include "support/rank_threads.h"

namespace pipetrain {
namespace {

TEST(Agree, AnErrorOfOneRankIsThrownOnAllAndNamesTheRank) {
  std::atomic<int> thrown = 0;
  test::run_ranks(3, [&](Control& control) {
    try {
      agree(control, [&] {
        if (control.rank() == 2) {
          throw DoesNotFit("too large");
        }
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::does_not_fit);
      EXPECT_STREQ(error.what(), "rank 2: too large");
      ++thrown;
    }
  });
  EXPECT_EQ(thrown, 3);
}

TEST(Agree, AnErrorOfAllRanksIsThrownAsItIs) {
  test::run_ranks(2, [&](Control& control) {
    try {
      agree(control, [] { throw UsageError("--steps 0"); });
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "--steps 0");
      EXPECT_EQ(error.code(), ExitCode::usage);
    }
  });
}

TEST(Agree, MemoryThatTheHostHasNotGotDoesNotFit) {
  test::run_ranks(2, [&](Control& control) {
    try {
      agree(control, [] { throw std::bad_alloc(); });
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::does_not_fit);
      EXPECT_STREQ(error.what(), "the host's memory is too small for these flags");
    }
  });
}

// Started with different commands, say.
TEST(Agree, RanksThatDoSomethingElseAreRefused) {
  std::atomic<int> refused = 0;
  test::run_ranks(3, [&](Control& control) {
    try {
      control.rank() == 1 ? control.require_equal("something", "the flags") : agree(control, [] {});
    } catch (const UsageError&) {
      ++refused;
    }
  });
  EXPECT_EQ(refused, 3);
}

TEST(Agree, NothingIsThrownWhenAllSucceed) {
  test::run_ranks(2, [](Control& control) { EXPECT_NO_THROW(agree(control, [] {})); });
}

}  // namespace
}  // namespace pipetrain
