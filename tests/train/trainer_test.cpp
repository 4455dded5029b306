#ifdef PIPETRAIN_HOST

#include "pipetrain/train/trainer.h"

#include <emulator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "pipetrain/error.h"
#include "pipetrain/train/safetensors.h"
#include "train/temporary.h"
#include "train/training.h"

// The oracle computed by PyTorch in float64, and the same bits however the model is spread.

namespace pipetrain {
namespace {

using test::fixture_config;
using test::train_on_threads;
using test::Training;

struct Spread {
  std::string schedule;
  int ranks = 1;
  int chunks = 1;
};

// All p*v <= 8 of p = 1, 2, 4, 8 and v = 1, 2, 4.
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
  return all;
}

struct Bounds {
  double gradient = 0;  // norm of the difference over the norm, per tensor
  double loss = 0;      // absolute for bf16, relative otherwise
  double norm = 0;      // relative
};

Bounds bounds_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return {1e-5, 1e-5, 1e-5};
    case Precision::fp64:
      return {1e-10, 1e-10, 1e-10};
    case Precision::bf16:
      return {3e-2, 5e-4, 1e-2};
  }
  return {};
}

const std::string& fixture_directory() {
  static const std::string directory = std::string(PIPETRAIN_TEST_DATA) + "/gpt2_l8_c32";
  return directory;
}

void expect_matches_oracle(const Training& training, Precision precision) {
  const Bounds bounds = bounds_of(precision);
  const auto expected = nlohmann::json::parse(read_file(fixture_directory() + "/expected.json"));
  const std::vector<double> losses = expected["losses"];
  const std::vector<double> norms = expected["grad_norms"];
  ASSERT_EQ(training.losses().size(), losses.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(training.losses()[step], losses[step], bounds.loss * losses[step])
        << "step " << step;
    EXPECT_NEAR(training.norms()[step], norms[step], bounds.norm * norms[step]) << "step " << step;
  }
  const TemporaryDirectory directory;
  write_file(directory.file("ours.safetensors"), training.gradients);
  const SafetensorsFile ours(directory.file("ours.safetensors"), "ours");
  const SafetensorsFile oracle(fixture_directory() + "/gradients.safetensors", "oracle");
  ASSERT_EQ(ours.tensors().size(), oracle.tensors().size());
  for (const TensorInfo& tensor : oracle.tensors()) {
    ASSERT_NE(ours.find(tensor.name), nullptr) << tensor.name;
    const std::vector<double> want = oracle.values(tensor);
    const std::vector<double> have = ours.values(*ours.find(tensor.name));
    ASSERT_EQ(have.size(), want.size()) << tensor.name;
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += (have[i] - want[i]) * (have[i] - want[i]);
      size += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(difference), bounds.gradient * std::sqrt(size)) << tensor.name;
  }
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
