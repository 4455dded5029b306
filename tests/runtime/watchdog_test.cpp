#include "pipetrain/runtime/watchdog.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <thread>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"
#include "pipetrain/progress.h"
#include "support/rank_threads.h"

namespace pipetrain {
namespace {

using namespace std::chrono_literals;

// A watchdog whose verdict is kept instead of ending the process.
class WatchdogTest : public testing::Test {
 protected:
  Watchdog::Expire keep() {
    return [this](const std::string& reason, ExitCode) { verdict_.set_value(reason); };
  }
  std::string wait_for_verdict() {
    auto future = verdict_.get_future();
    return future.wait_for(20s) == std::future_status::ready ? future.get() : "none";
  }
  std::promise<std::string> verdict_;
};

TEST_F(WatchdogTest, NamesThePhaseOfTheHostThatTakesTooLong) {
  Watchdog watchdog(100ms, keep());
  const Watchdog::HostPhase phase(&watchdog, "connecting to rank 3");
  const std::string verdict = wait_for_verdict();
  EXPECT_NE(verdict.find("connecting to rank 3"), std::string::npos) << verdict;
  EXPECT_NE(verdict.find("--timeout"), std::string::npos) << verdict;
}

// Fault: the deadline is one for a whole phase, however much is done in it.
TEST_F(WatchdogTest, APhaseThatReportsProgressIsNotEndedUntilItStandsStill) {
  constexpr auto timeout = 1s;
  Watchdog watchdog(timeout, keep());
  const ProgressListener listener([&] { watchdog.progress(); });
  const Watchdog::HostPhase outer(&watchdog, "outer");
  const Watchdog::HostPhase phase(&watchdog, "setting weights");
  auto future = verdict_.get_future();
  for (auto worked = 0ms; worked < 2 * timeout; worked += 20ms) {
    std::this_thread::sleep_for(20ms);
    report_progress();
  }
  EXPECT_EQ(future.wait_for(0s), std::future_status::timeout);
  ASSERT_EQ(future.wait_for(20s), std::future_status::ready);
  EXPECT_NE(future.get().find("setting weights"), std::string::npos);
}

// Rank 1 waits for rank 0, which works and then stands still.
TEST(SharedProgress, ARankThatWaitsForOneThatWorksIsNotEndedUntilThatStandsStill) {
  constexpr auto timeout = 1s;
  std::atomic<bool> working = true;
  std::atomic<bool> ended_too_early = false;
  std::promise<void> ended;
  test::run_ranks(2, [&](Control& control) {
    Watchdog watchdog(timeout, [&](const std::string&, ExitCode) {
      ended_too_early = ended_too_early || working;
      if (control.rank() == 1) {
        ended.set_value();
      }
    });
    const SharedProgress progress(watchdog, control);
    if (control.rank() == 0) {
      for (auto worked = 0ms; worked < 2 * timeout; worked += 20ms) {
        std::this_thread::sleep_for(20ms);
        report_progress();
      }
      working = false;
      EXPECT_EQ(ended.get_future().wait_for(20s), std::future_status::ready);
      control.barrier();
    } else {
      const Watchdog::HostPhase phase(&watchdog, "waiting");
      control.barrier();
    }
  });
  EXPECT_FALSE(ended_too_early);
}

TEST_F(WatchdogTest, NamesTheRankThatIsWaitedForOnTheHost) {
  test::run_ranks(2, [&](Control& control) {
    if (control.rank() == 1) {
      Watchdog watchdog(100ms, keep());
      const SharedProgress progress(watchdog, control);
      const Watchdog::HostPhase phase(&watchdog, "rank 1 reads its input");
      control.receive(0);
    } else {
      const std::string verdict = wait_for_verdict();
      EXPECT_NE(verdict.find("rank 1 reads its input; it waits for rank 0"), std::string::npos)
          << verdict;
      control.send({}, 1);
    }
  });
}

TEST_F(WatchdogTest, ReportsWhatTheErrorProbeSays) {
  Watchdog watchdog(1h, keep());
  watchdog.set_error_probe([] { return std::string("NCCL: remote error"); });
  EXPECT_EQ(wait_for_verdict(), "NCCL: remote error");
}

TEST_F(WatchdogTest, RecordsTheReasonBeforeTheEnd) {
  std::string recorded;
  std::promise<std::string> seen;
  Watchdog watchdog(1h, [&](const std::string&, ExitCode) { seen.set_value(recorded); });
  watchdog.set_recorder([&](const std::string& reason) { recorded = reason; });
  watchdog.set_error_probe([] { return std::string("NCCL: remote error"); });
  EXPECT_EQ(seen.get_future().get(), "NCCL: remote error");
}

// Fault: a log on a file system that hangs keeps the job from ending.
TEST_F(WatchdogTest, ARecorderThatHangsDoesNotKeepTheJobFromEnding) {
  std::promise<void> release;
  std::promise<void> released;
  Watchdog watchdog(1h, keep());
  watchdog.set_recorder([&](const std::string&) {
    release.get_future().wait();
    released.set_value();
  });
  watchdog.set_error_probe([] { return std::string("NCCL: remote error"); });
  EXPECT_EQ(wait_for_verdict(), "NCCL: remote error");
  release.set_value();
  released.get_future().wait();
}

// Fault: the error of one rank is never told, for it waits for its device, and that for a peer.
TEST_F(WatchdogTest, ARankThatEndsWithAnErrorHasADeadlineLeft) {
  Watchdog watchdog(100ms, keep());
  {
    const Watchdog::HostPhase phase(&watchdog, "computing");
    watchdog.fail("rank 1 ends: a tag does not match");
  }
  watchdog.clear();
  const std::string verdict = wait_for_verdict();
  EXPECT_NE(verdict.find("while rank 1 ends: a tag does not match"), std::string::npos) << verdict;
}

TEST_F(WatchdogTest, IsSilentWhileItemsEnd) {
  bool expired = false;
  {
    Watchdog watchdog(10s, [&](const std::string&, ExitCode) { expired = true; });
    Stream stream;
    Event event;
    const size_t item = watchdog.add(event, "item");
    for (int step = 0; step < 100; ++step) {
      event.record(stream, {step, 0, 0});
      watchdog.submitted(item);
      stream.synchronize();
      watchdog.begin_step();
    }
  }
  EXPECT_FALSE(expired);
}

TEST_F(WatchdogTest, MoreThanTwoStepsInFlightAreADefect) {
  Watchdog watchdog(1h, keep());
  Event event;
  const size_t item = watchdog.add(event, "item");
  watchdog.submitted(item);
  watchdog.submitted(item);
  EXPECT_THROW(watchdog.submitted(item), InternalError);
}

}  // namespace
}  // namespace pipetrain
