#include "pipetrain/train/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace pipetrain {
namespace {

struct Quality {
  double slowest = 0;
  double squares = 0;
};

Quality quality(const StageTimes& times, const std::vector<int>& layers) {
  Quality result;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    const double time = times.of(stage, layers[stage]);
    result.slowest = std::max(result.slowest, time);
    result.squares += time * time;
  }
  return result;
}

// All ways to give `left` layers to the stages from `stage` on.
template <typename Visit>
void for_each_partition(std::vector<int>& layers, size_t stage, int left, const Visit& visit) {
  if (stage + 1 == layers.size()) {
    layers[stage] = left;
    visit(layers);
    return;
  }
  for (int own = 0; own <= left; ++own) {
    layers[stage] = own;
    for_each_partition(layers, stage + 1, left - own, visit);
  }
}

StageTimes alike(size_t stages, double embedding, double head) {
  StageTimes times{std::vector<double>(stages, 0), std::vector<double>(stages, 1)};
  times.fixed.front() += embedding;
  times.fixed.back() += head;
  return times;
}

std::vector<int> no_limit(size_t stages) {
  return std::vector<int>(stages, 1000);
}

// Fault 28: layers are dropped where their number is not divisible. Fault 9: stages without layers.
TEST(Balance, EveryLayerOnceAndNoPartitionIsFasterOrMoreEven) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> time(0, 6);
  int stages_without_layers = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const size_t stages = 1 + size_t(trial) % 4;
    const int layers = 1 + trial % 7;
    StageTimes times{{}, {}};
    std::vector<int> most;
    for (size_t stage = 0; stage < stages; ++stage) {
      times.fixed.push_back(time(random));
      times.layer.push_back(1 + time(random));
      most.push_back(1 + time(random));
    }
    const std::vector<int> balanced = balanced_layers(layers, times, most);
    Quality best{1e300, 1e300};
    std::vector<int> tried(stages);
    for_each_partition(tried, 0, layers, [&](const std::vector<int>& one) {
      const Quality found = quality(times, one);
      bool allowed = true;
      for (size_t stage = 0; stage < stages; ++stage) {
        allowed = allowed && one[stage] <= most[stage];
      }
      if (allowed &&
          std::pair(found.slowest, found.squares) < std::pair(best.slowest, best.squares)) {
        best = found;
      }
    });
    if (balanced.empty()) {
      EXPECT_GT(layers, std::accumulate(most.begin(), most.end(), 0));
      continue;
    }
    EXPECT_EQ(std::accumulate(balanced.begin(), balanced.end(), 0), layers);
    EXPECT_EQ(quality(times, balanced).slowest, best.slowest) << "trial " << trial;
    EXPECT_EQ(quality(times, balanced).squares, best.squares) << "trial " << trial;
    stages_without_layers += int(std::count(balanced.begin(), balanced.end(), 0));
  }
  EXPECT_GT(stages_without_layers, 0);
}

TEST(Balance, AHeadAsSlowAsLayersTakesTheirPlace) {
  EXPECT_EQ(balanced_layers(10, alike(4, 0, 2), no_limit(4)), (std::vector<int>{3, 3, 3, 1}));
  EXPECT_EQ(balanced_layers(9, alike(4, 0, 3), no_limit(4)), (std::vector<int>{3, 3, 3, 0}));
  EXPECT_EQ(balanced_layers(4, alike(4, 0, 50), no_limit(4)), (std::vector<int>{2, 1, 1, 0}));
  EXPECT_EQ(balanced_layers(8, alike(3, 2, 2), no_limit(3)), (std::vector<int>{2, 4, 2}));
}

TEST(Balance, OfEqualPartitionsEarlierStagesGetMore) {
  EXPECT_EQ(balanced_layers(5, alike(3, 0, 0), no_limit(3)), (std::vector<int>{2, 2, 1}));
  EXPECT_EQ(balanced_layers(2, alike(4, 0, 0), no_limit(4)), (std::vector<int>{1, 1, 0, 0}));
  EXPECT_EQ(balanced_layers(7, alike(3, 0.1, 0.1), no_limit(3)), (std::vector<int>{2, 3, 2}));
}

TEST(Balance, StagesThatAreTooLargeGiveUpLayersUntilAllFit) {
  std::vector<int> tried;
  const auto first_may_have = [&](int most) {
    return balanced_layers_that_fit(
        8, alike(4, 0, 0),
        [most](const std::vector<int>& layers) {
          return layers[0] > most ? std::optional(0) : std::nullopt;
        },
        &tried);
  };
  EXPECT_EQ(first_may_have(1), (std::vector<int>{1, 3, 2, 2}));
  EXPECT_EQ(first_may_have(0), (std::vector<int>{0, 3, 3, 2}));
  EXPECT_EQ(first_may_have(2), (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(first_may_have(-1), std::nullopt);
  EXPECT_EQ(tried, (std::vector<int>{0, 3, 3, 2}));
}

TEST(Balance, AStageIsAsSlowAsTheSlowestDeviceThatHoldsIt) {
  Profile profile;
  for (const double slow : {1.0, 2.0}) {
    DeviceProfile device;
    device.block = {.forward = slow, .backward_input = slow, .backward_weight = slow};
    device.embedding.forward = 10 * slow;
    device.head.forward = 100 * slow;
    profile.ranks.push_back(device);
  }
  using schedule::Placement;
  const StageTimes loop = stage_times(profile, Placement(Placement::Kind::loop, 2, 1, 4));
  EXPECT_EQ(loop.fixed, (std::vector<double>{10, 200}));
  EXPECT_EQ(loop.layer, (std::vector<double>{3, 6}));
  const StageTimes v = stage_times(profile, Placement(Placement::Kind::v, 2, 2, 4));
  EXPECT_EQ(v.fixed, (std::vector<double>{10, 0, 0, 100}));
  EXPECT_EQ(v.layer, (std::vector<double>{3, 6, 6, 3}));
  const StageTimes mirrored = stage_times(profile, Placement(Placement::Kind::mirrored, 2, 1, 4));
  EXPECT_EQ(mirrored.fixed, (std::vector<double>{20, 200}));
  EXPECT_EQ(mirrored.layer, (std::vector<double>{6, 6}));
}

}  // namespace
}  // namespace pipetrain
