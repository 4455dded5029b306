#include "pipetrain/runtime/watchdog.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <future>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

using namespace std::chrono_literals;

// A watchdog whose verdict is kept instead of ending the process.
class WatchdogTest : public testing::Test {
 protected:
  Watchdog::Expire keep() {
    return [this](const std::string& reason) { verdict_.set_value(reason); };
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

TEST_F(WatchdogTest, ReportsWhatTheErrorProbeSays) {
  Watchdog watchdog(1h, keep());
  watchdog.set_error_probe([] { return std::string("NCCL: remote error"); });
  EXPECT_EQ(wait_for_verdict(), "NCCL: remote error");
}

TEST_F(WatchdogTest, IsSilentWhileItemsEnd) {
  bool expired = false;
  {
    Watchdog watchdog(10s, [&](const std::string&) { expired = true; });
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
