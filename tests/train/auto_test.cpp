#ifdef PIPETRAIN_HOST

#include <gtest/gtest.h>

#include "pipetrain/error.h"
#include "train/engine_run.h"
#include "train/temporary.h"
#include "train/training.h"

// --schedule auto and --balance measured from the profile to the last step.

namespace pipetrain {
namespace {

using test::config_of;
using test::Spread;
using test::train_on_threads;
using test::Training;

TrainConfig two_steps(const Spread& spread) {
  TrainConfig config = config_of(spread);
  config.steps = 2;
  return config;
}

TrainConfig planned(const Spread& spread) {
  TrainConfig config = two_steps(spread);
  config.schedule = "auto";
  return config;
}

void expect_same_bits(const Training& training, const Training& reference) {
  EXPECT_EQ(training.losses(), reference.losses());
  EXPECT_EQ(training.norms(), reference.norms());
  EXPECT_TRUE(training.gradients == reference.gradients);
  EXPECT_TRUE(training.weights == reference.weights);
}

const Training& one_device() {
  static const Training training = train_on_threads(two_steps({}), 1);
  return training;
}

class Auto : public testing::Test {
 protected:
  test::EmulatorSettings settings_;
};

// What the profile says differs from run to run; the bits do not.
TEST_F(Auto, HasTheBitsOfOneDeviceOnAnyNumberOfRanks) {
  uint64_t seed = 1;
  for (const int ranks : {1, 2, 4, 8}) {
    for (const std::string balance : {"layers", "measured"}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, balance " << balance);
      TrainConfig config = planned({.pipeline = ranks});
      config.balance = balance;
      settings_.disturb(seed++);
      const Training training = train_on_threads(config, ranks);
      expect_same_bits(training, one_device());
      const TrainReport& report = training.reports.front();
      EXPECT_EQ(report.schedule.name, "auto");
      EXPECT_TRUE(report.profiled);
      EXPECT_EQ(report.first.bubble_planned, report.planned.bubble_fraction());
    }
  }
}

TEST_F(Auto, HasTheBitsOfOneDeviceOnEitherPlacement) {
  using schedule::Placement;
  TrainConfig loop = planned({.pipeline = 4});
  loop.chunks = 1;
  const Training on_loop = train_on_threads(loop, 4);
  expect_same_bits(on_loop, one_device());
  EXPECT_EQ(on_loop.reports.front().schedule.placement.stages(), 4);
  TrainConfig v = planned({.pipeline = 4});
  v.layers_per_stage = {1, 1, 1, 1, 2, 1, 0, 1};  // as many as V has stages
  const Training on_v = train_on_threads(v, 4);
  expect_same_bits(on_v, one_device());
  EXPECT_EQ(on_v.reports.front().schedule.placement.kind(), Placement::Kind::v);
}

// Other slots give other times, limits and weight-memory.
TEST_F(Auto, HasTheBitsOfOneDeviceWhateverSlotsHold) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    TrainConfig config = planned({.pipeline = 2});
    config.slots = {recompute, Defer::cheap};
    expect_same_bits(train_on_threads(config, 2), one_device());
  }
}

TEST_F(Auto, RunsOnReplicasWithASplitOptimizerState) {
  const Spread replicas = {.pipeline = 2, .replicas = 2};
  Spread alone = replicas;
  alone.pipeline = 1;
  const Training reference = train_on_threads(two_steps(alone), alone.ranks());
  for (const int zero : {0, 1}) {
    TrainConfig config = planned(replicas);
    config.zero = zero;
    config.balance = "measured";
    expect_same_bits(train_on_threads(config, replicas.ranks()), reference);
  }
}

TEST_F(Auto, ThePlanOfTheRunDirectoryRunsAgainWithTheSameBits) {
  const TemporaryDirectory directory;
  TrainConfig config = planned({.pipeline = 2});
  config.run_dir = directory.file("run");
  const Training first = train_on_threads(config, 2);
  TrainConfig again = two_steps({.pipeline = 2});
  again.schedule = "csv:" + directory.file("run/plan.csv");
  const Training second = train_on_threads(again, 2);
  expect_same_bits(second, first);
  EXPECT_EQ(second.reports.front().schedule.ranks, first.reports.front().schedule.ranks);
  const std::string log = read_file(directory.file("run/log.txt"));
  for (const char* part : {"profile from rank 0", "profile of the links", "auto: ms per rank",
                           "activation limit", "weight-memory", "layers", "bubble"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << " is not in " << log;
  }
}

TEST_F(Auto, AFixedScheduleIsBalancedByMeasuredTimes) {
  for (const std::string name : {"1f1b", "zb-v", "dualpipe"}) {
    TrainConfig config = two_steps({.schedule = name, .pipeline = 2});
    config.balance = "measured";
    const Training training = train_on_threads(config, 2);
    EXPECT_EQ(training.reports.front().schedule.name, name);
    EXPECT_TRUE(training.reports.front().profiled);
    if (name != "dualpipe") {  // adds in another order
      expect_same_bits(training, one_device());
    }
  }
}

// Memory that holds one micro-batch at a time and little more, and memory that does not.
TEST_F(Auto, KeepsToTheMemoryLimitOrSaysWhatDoesNotFit) {
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  TrainConfig config = planned({.pipeline = 2, .microbatches = 8});
  config.layers_per_stage = {4, 4};
  TrainConfig depth_one = two_steps({.schedule = "1f1b", .pipeline = 2, .microbatches = 8});
  size_t limit = 0;
  size_t slot = 0;
  {
    const Job job = make_job(depth_one, 2, 1);
    limit = job.budget.total();
    slot = activation_slot_bytes(job.request, job.schedule.placement, 1);
  }
  config.memory_limit = double(limit + 2 * slot) / gib;
  const Training training = train_on_threads(config, 2);
  for (const TrainReport& report : training.reports) {
    EXPECT_LE(report.budget.total(), limit + 2 * slot);
  }
  EXPECT_GT(training.reports.front().peaks[0].cap_slots, 1);
  expect_same_bits(training, train_on_threads(depth_one, 2));
  TrainConfig evaluated = config;
  evaluated.validation = evaluated.data;
  expect_same_bits(train_on_threads(evaluated, 2), training);
  for (const double part : {0.9, 0.05}) {
    config.memory_limit = part * double(limit) / gib;
    try {
      train_on_threads(config, 2);
      FAIL() << "it fits";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::does_not_fit) << error.what();
      EXPECT_NE(std::string(error.what()).find("--memory-limit"), std::string::npos);
    }
  }
}

TEST_F(Auto, NeedsRanksThatPlanTogether) {
  try {
    make_job(planned({}), 1, 0);
    FAIL() << "planned without a profile";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--schedule auto"), std::string::npos);
  }
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
