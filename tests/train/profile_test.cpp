#ifdef PIPETRAIN_HOST

#include "pipetrain/train/profile.h"

#include <emulator.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "support/rank_threads.h"
#include "train/engine_run.h"

namespace pipetrain {
namespace {

using namespace std::chrono_literals;

BudgetRequest small_model(Precision precision) {
  return {.model = {.layers = 2, .hidden = 32, .heads = 4, .vocabulary = 300, .sequence = 16},
          .shape = {2, 16},
          .precision = precision,
          .stages = {},
          .slots = {}};
}

void expect_same(const PassTimes& x, const PassTimes& y) {
  EXPECT_EQ(x.forward, y.forward);
  EXPECT_EQ(x.backward, y.backward);
  EXPECT_EQ(x.backward_input, y.backward_input);
  EXPECT_EQ(x.backward_weight, y.backward_weight);
}

class ProfileTest : public testing::Test {
 protected:
  // On every rank of `replicas` pipelines of `pipeline` ranks.
  std::vector<Profile> measure(const BudgetRequest& request, int pipeline, int replicas) {
    std::vector<Profile> profiles(size_t(pipeline * replicas));
    test::run_ranks(pipeline * replicas, [&](Control& control) {
      const Grid grid = {pipeline, replicas, control.rank()};
      emulator::reset_counters(control.rank());
      const size_t before = emulator::counters(control.rank()).bytes;
      profiles[size_t(control.rank())] = measure_profile(request, grid, true, control, nullptr);
      const emulator::Counters after = emulator::counters(control.rank());
      EXPECT_EQ(after.bytes, before) << "memory of the profile is left";
      if (control.rank() == 0) {
        EXPECT_EQ(after.high_water - before, profile_bytes(request));
      }
    });
    return profiles;
  }
  test::EmulatorSettings settings_;
};

TEST_F(ProfileTest, AllRanksHaveTheSameTimesAndTheMemoryIsFree) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const std::vector<Profile> profiles = measure(small_model(precision), 2, 2);
    for (const Profile& profile : profiles) {
      ASSERT_EQ(profile.ranks.size(), 2u);
      for (const DeviceProfile& device : profile.ranks) {
        EXPECT_GT(device.block.forward, 0);
        EXPECT_GT(device.block.backward, 0);
        EXPECT_GT(device.block.backward_input, 0);
        EXPECT_GT(device.block.backward_weight, 0);
        EXPECT_GT(device.embedding.forward, 0);
        EXPECT_GT(device.embedding.backward_input, 0);
        EXPECT_GT(device.head.forward, 0);
        // All emulated devices have one name.
        expect_same(device.block, profiles[0].ranks[0].block);
        expect_same(device.embedding, profiles[0].ranks[0].embedding);
        expect_same(device.head, profiles[0].ranks[0].head);
      }
      EXPECT_GT(profile.link.latency, 0);
      EXPECT_EQ(profile.link.latency, profiles[0].link.latency);
      EXPECT_EQ(profile.link.transfer, profiles[0].link.transfer);
    }
  }
}

TEST_F(ProfileTest, OneRankHasNoLinks) {
  const Profile profile = measure(small_model(Precision::fp64), 1, 1).front();
  EXPECT_GT(profile.ranks.front().block.sum(), 0);
  EXPECT_EQ(profile.link.latency, 0);
  EXPECT_EQ(profile.link.transfer, 0);
}

TEST_F(ProfileTest, LinksAreAsSlowAsTheyAreMade) {
  emulator::Settings settings = emulator::settings();
  settings.link_latency_us = 3000;
  settings.link_bytes_per_us = 1;  // a message of 4 KiB takes 4 ms more
  emulator::set_settings(settings);
  const Profile profile = measure(small_model(Precision::fp32), 3, 1).front();
  EXPECT_GE(profile.link.latency, 2.9);
  EXPECT_GE(profile.link.transfer + profile.link.latency, 3 + 4 - 0.1);
}

// Fault 11: a peer stops, and the others wait for ever. Here while devices are profiled.
TEST_F(ProfileTest, ARankThatDoesNotTakePartIsNoticed) {
  std::promise<std::string> verdict;
  std::future<std::string> said = verdict.get_future();
  Watchdog watchdog(200ms, [&](const std::string& reason, ExitCode) { verdict.set_value(reason); });
  test::run_ranks(2, [&](Control& control) {
    if (control.rank() == 1) {
      ASSERT_EQ(said.wait_for(20s), std::future_status::ready);
    }
    measure_profile(small_model(Precision::fp32), {2, 1, control.rank()}, false, control,
                    control.rank() == 0 ? &watchdog : nullptr);
  });
  const std::string reason = said.get();
  for (const char* part : {"rank 0", "profiles", "--timeout"}) {
    EXPECT_NE(reason.find(part), std::string::npos) << reason;
  }
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
