// Needs the emulator's settings.
#ifdef PIPETRAIN_HOST

#include <emulator.h>
#include <gtest/gtest.h>

#include "ranks.h"
#include "ring.h"

namespace pipetrain {
namespace {

// Settings are process-wide: every test gives them back.
class EmulatedRings : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { emulator::set_settings(saved_); }
  void run(const emulator::Settings& settings, const RingOptions& options) {
    emulator::set_settings(settings);
    run_ranks(GetParam(),
              [&](Control& control) { EXPECT_EQ(check_ring_of_channels(control, options), ""); });
  }
  const emulator::Settings saved_ = emulator::settings();
};

TEST_P(EmulatedRings, RandomDelaysChangeNothing) {
  for (const uint64_t seed : {1, 2, 3}) {
    emulator::Settings settings = saved_;
    settings.delay_seed = seed;
    run(settings, {.bytes = 30'000, .messages = 4});
  }
}

// The order of pairing_rounds() is one global order: even a device that runs one transfer at a
// time, in the order of the host's calls, ends.
TEST_P(EmulatedRings, OneTransferAtATimeEnds) {
  emulator::Settings settings = saved_;
  settings.one_at_a_time = true;
  run(settings, {.bytes = 30'000, .messages = 4});
  run(settings, {.bytes = 30'000, .messages = 4, .one_stream_per_rank = true});
}

INSTANTIATE_TEST_SUITE_P(Sizes, EmulatedRings, testing::Values(2, 5, 8));

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
