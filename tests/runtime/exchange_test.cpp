#ifdef PIPETRAIN_HOST

#include "pipetrain/runtime/exchange.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "support/rank_threads.h"

namespace pipetrain {
namespace {

// Fault 11: a peer is silent and the others wait for ever. Here while channels are connected: the
// watchdog of the rank that waits names the other one, which comes when that was seen.
TEST(Exchange, APeerThatDoesNotConnectIsNamed) {
  const schedule::LoweredSchedule lowered =
      lower(schedule::generate({.name = "1f1b", .ranks = 2, .microbatches = 2}));
  constexpr size_t message = 64;
  std::promise<std::string> verdict;
  std::shared_future<std::string> seen = verdict.get_future().share();
  test::run_ranks(2, [&](Control& control) {
    const Grid grid = make_grid(2, control.rank(), 1);
    Buffer memory(Exchange::bytes(lowered, grid.pipeline_rank(), message));
    Region region(memory);
    std::optional<Watchdog> watchdog;
    if (control.rank() == 0) {
      watchdog.emplace(std::chrono::milliseconds(100),
                       [&](const std::string& reason, ExitCode) { verdict.set_value(reason); });
    } else {
      seen.wait_for(std::chrono::seconds(60));
    }
    const Exchange exchange(lowered, grid, control, message, region, nullptr,
                            watchdog ? &*watchdog : nullptr);
  });
  ASSERT_EQ(seen.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_NE(seen.get().find("while rank 0 connects with rank 1"), std::string::npos) << seen.get();
}

}  // namespace
}  // namespace pipetrain

#endif
