#ifdef PIPETRAIN_HOST

#include "pipetrain/train/trainer.h"

#include <emulator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "train/oracle.h"
#include "train/training.h"

// The oracle computed by PyTorch in float64, and the same bits however the model is spread.

namespace pipetrain {
namespace {

using test::expect_matches_oracle;
using test::fixture_config;
using test::train_on_threads;
using test::Training;

struct Spread {
  std::string schedule;
  int ranks = 1;
  int chunks = 1;
};

// All p*v <= 8 of p = 1, 2, 4, 8 and v = 1, 2, 4; and one whose last stage is on the first rank.
std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const int p : {1, 2, 4, 8}) {
    all.push_back({"gpipe", p, 1});
    all.push_back({"1f1b", p, 1});
    for (const int v : {1, 2, 4}) {
      if (p * v <= 8) {
        all.push_back({"interleaved", p, v});
      }
    }
  }
  all.push_back({"zb-v", 2, 2});
  return all;
}

void expect_same_bits(const Training& training, const Training& reference) {
  EXPECT_EQ(training.losses(), reference.losses());
  EXPECT_EQ(training.norms(), reference.norms());
  EXPECT_TRUE(training.gradients == reference.gradients);
  EXPECT_TRUE(training.weights == reference.weights);
}

TrainConfig spread_config(const Spread& spread, Precision precision) {
  TrainConfig config = fixture_config();
  config.schedule = spread.schedule;
  config.precision = precision;
  if (spread.schedule == "interleaved") {
    config.chunks = spread.chunks;
  }
  return config;
}

const Training& one_device(Precision precision) {
  static std::map<Precision, Training> trainings;
  if (!trainings.contains(precision)) {
    trainings[precision] = train_on_threads(spread_config({"1f1b", 1, 1}, precision), 1);
  }
  return trainings[precision];
}

class TrainerFixture : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override { saved_ = emulator::settings(); }
  void TearDown() override { emulator::set_settings(saved_); }
  emulator::Settings saved_;
};

TEST_P(TrainerFixture, OneDeviceMatchesTheOracle) {
  expect_matches_oracle(one_device(GetParam()), GetParam());
}

// Fault 2: with p=2 and v=2 the next rank is the previous one. Fault 42: the loss is known to all,
// whichever rank has the last stage.
TEST_P(TrainerFixture, EverySpreadHasTheBitsOfOneDevice) {
  uint64_t seed = 1;
  for (const Spread& spread : spreads()) {
    SCOPED_TRACE(fmt::format("{} p={} v={}", spread.schedule, spread.ranks, spread.chunks));
    // Another seed of the random delays for each; every third one transfer at a time.
    emulator::Settings settings = saved_;
    settings.delay_seed = seed++;
    settings.max_delay_us = 40;
    settings.one_at_a_time = seed % 3 == 0;
    emulator::set_settings(settings);
    expect_same_bits(train_on_threads(spread_config(spread, GetParam()), spread.ranks),
                     one_device(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, TrainerFixture,
                         testing::Values(Precision::fp32, Precision::bf16, Precision::fp64),
                         [](const auto& parameter) { return to_string(parameter.param); });

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
