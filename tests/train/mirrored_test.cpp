#ifdef PIPETRAIN_HOST

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "pipetrain/error.h"
#include "support/rank_threads.h"
#include "train/contribution.h"
#include "train/device_values.h"
#include "train/engine_run.h"
#include "train/temporary.h"
#include "train/training.h"

// Mirrored placements: every stage has a copy on two ranks, each for one direction. What is right
// follows from the two directions run on one device each: the sum of their gradients.

namespace pipetrain {
namespace {

using test::config_of;
using test::EngineResult;
using test::EngineRun;
using test::one_stage;
using test::run_engines;
using test::Spread;

// The micro-batches of one direction, or of replica j those of direction j.
class OfDirection final : public DataSource {
 public:
  static constexpr int the_replicas = -1;

  OfDirection(const Job& job, const schedule::Placement& placement, int direction)
      : placement_(placement),
        direction_(direction),
        shape_{placement.microbatches(), 1, job.batch.batch, job.batch.sequence},
        all_(*job.tokens, shape_, job.model.config.vocabulary, false, 1) {}

  void fill(int64_t step, int replica, int* inputs, int* targets) const override {
    const int direction = direction_ == the_replicas ? replica : direction_;
    const size_t rows = shape_.rows();
    std::vector<int> all_inputs(rows * size_t(shape_.microbatches));
    std::vector<int> all_targets(all_inputs.size());
    all_.fill(step, 0, all_inputs.data(), all_targets.data());
    for (int microbatch = 0; microbatch < shape_.microbatches; ++microbatch) {
      if (placement_.direction(microbatch) == direction) {
        inputs = std::copy_n(all_inputs.begin() + std::ptrdiff_t(size_t(microbatch) * rows), rows,
                             inputs);
        targets = std::copy_n(all_targets.begin() + std::ptrdiff_t(size_t(microbatch) * rows), rows,
                              targets);
      }
    }
  }
  size_t valid_targets(int64_t step) const override { return all_.valid_targets(step); }

 private:
  schedule::Placement placement_;
  int direction_;
  BatchShape shape_;
  TokenBatches all_;
};

schedule::Placement placement_of(const Spread& spread) {
  return make_job(config_of(spread), spread.ranks(), 0).schedule.placement;
}

// One device per direction, and their sum.
EngineResult two_devices(const Spread& mirrored, int64_t steps = 3) {
  Spread spread = {.microbatches = mirrored.microbatches / 2,
                   .replicas = 2,
                   .zero = mirrored.zero,
                   .precision = mirrored.precision};
  EngineRun run{config_of(spread), spread.ranks(), steps};
  run.source = [placement = placement_of(mirrored)](const Job& job) {
    return std::make_unique<OfDirection>(job, placement, OfDirection::the_replicas);
  };
  return run_engines(run);
}

class Mirrored : public testing::Test {
 protected:
  test::EmulatorSettings settings_;
};

const std::vector<Spread>& spreads() {
  static const std::vector<Spread> list = {
      {.schedule = "dualpipe", .pipeline = 2},
      {.schedule = "dualpipe", .pipeline = 4, .microbatches = 8},
      {.schedule = "dualpipe", .pipeline = 4, .microbatches = 10, .precision = Precision::bf16},
      {.schedule = "chimera", .pipeline = 2, .microbatches = 2},
      {.schedule = "chimera", .pipeline = 4, .microbatches = 8},
      {.schedule = "chimera", .pipeline = 2, .microbatches = 6, .precision = Precision::bf16},
  };
  return list;
}

TEST_F(Mirrored, StepsHaveTheBitsOfOneDevicePerDirection) {
  uint64_t seed = 1;
  for (Spread spread : spreads()) {
    for (const int zero : {0, 1}) {
      spread.zero = zero;
      SCOPED_TRACE(to_string(spread));
      settings_.disturb(seed++);
      test::expect_same_bits(run_engines(spread), two_devices(spread));
    }
  }
}

TEST(SweepMirrored, StepsHaveTheBitsOfOneDevicePerDirection) {
  const test::EmulatorSettings settings;
  uint64_t seed = 1;
  for (const std::string name : {"dualpipe", "chimera"}) {
    for (const int pipeline : {2, 4, 8}) {
      for (int microbatches = pipeline; microbatches <= 3 * pipeline; microbatches += 2) {
        for (const Precision precision : {Precision::fp32, Precision::bf16}) {
          const Spread spread = {.schedule = name,
                                 .pipeline = pipeline,
                                 .microbatches = microbatches,
                                 .zero = int(seed % 2),
                                 .precision = precision};
          SCOPED_TRACE(to_string(spread));
          try {
            placement_of(spread);
          } catch (const UsageError&) {
            continue;
          }
          settings.disturb(seed++);
          test::expect_same_bits(run_engines(spread), two_devices(spread));
        }
      }
    }
  }
  EXPECT_GT(seed, 20u);
}

// The fixture with a head of its own that has the embedding's values, so that the gradients of the
// two can be told apart.
void write_untied_fixture(const std::string& directory) {
  const std::string fixture = test::fixture_config().init;
  const HuggingFaceConfig source = read_huggingface_config(fixture);
  const HuggingFaceWeights weights(fixture, source.config);
  GptConfig untied = source.config;
  untied.tied_head = false;
  const std::vector<Parameter> tied_table = parameter_table(source.config);
  test::run_ranks(1, [&](Control& control) {
    const StoreHolder holder(untied, partition(untied.layers, 1), Precision::fp32);
    set_weights(holder.store(), Precision::fp32, [&](const Parameter& parameter) {
      return weights.values(parameter.name == "lm_head.weight" ? tied_table.front() : parameter);
    });
    export_huggingface(directory, untied, nullptr, holder.store(), Precision::fp32, control);
  });
}

// The rule itself: (head down + head up) + (embedding down + embedding up), of all others down +
// up.
TEST_F(Mirrored, GradientsAreTheTwoPartialSums) {
  const TemporaryDirectory directory;
  write_untied_fixture(directory.path());
  for (const Spread& spread : spreads()) {
    SCOPED_TRACE(to_string(spread));
    const auto partial_sums = [&](int direction) {
      const Spread half = {.microbatches = spread.microbatches / 2, .precision = spread.precision};
      EngineRun run{config_of(half), 1, 1};
      run.config.init = directory.path();
      run.source = [&, placement = placement_of(spread)](const Job& job) {
        return std::make_unique<OfDirection>(job, placement, direction);
      };
      return run_engines(run).gradients;
    };
    const auto add = [](const std::vector<double>& a, const std::vector<double>& b) {
      std::vector<double> sum(a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        sum[i] = double(float(a[i]) + float(b[i]));
      }
      return sum;
    };
    test::Tensors expected;
    const test::Tensors up = partial_sums(1);
    for (const auto& [name, values] : partial_sums(0)) {
      expected[name] = add(values, up.at(name));
    }
    expected["wte.weight"] = add(expected.at("lm_head.weight"), expected.at("wte.weight"));
    expected.erase("lm_head.weight");

    const EngineResult result = run_engines(spread, 1);
    ASSERT_EQ(result.gradients.size(), expected.size());
    for (const auto& [name, values] : expected) {
      EXPECT_TRUE(result.gradients.at(name) == values) << name;
    }
    EXPECT_EQ(result.steps[0].loss, one_stage(spread).steps[0].loss);
  }
}

TEST_F(Mirrored, StepsAreNearThoseOfOneDevice) {
  for (const Spread& spread : spreads()) {
    if (spread.precision == Precision::fp32) {
      SCOPED_TRACE(to_string(spread));
      test::expect_near(run_engines(spread), one_stage(spread), 1e-6);
    }
  }
}

// Replicas of mirrored pipelines: four copies of every stage.
TEST_F(Mirrored, ReplicasAreNearThoseOfOneStage) {
  uint64_t seed = 1;
  for (Spread spread : {Spread{.schedule = "dualpipe", .pipeline = 2, .replicas = 2},
                        {.schedule = "chimera", .pipeline = 4, .replicas = 2}}) {
    SCOPED_TRACE(to_string(spread));
    settings_.disturb(seed++);
    const EngineResult whole = run_engines(spread);
    test::expect_near(whole, one_stage(spread), 1e-6);
    spread.zero = 1;
    test::expect_same_bits(run_engines(spread), whole);
  }
}

TEST_F(Mirrored, WhatAScheduleRefusesIsAUsageErrorThatNamesTheFlag) {
  const auto message = [](const Spread& spread) {
    try {
      make_job(config_of(spread), spread.ranks(), 0);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  const auto expect = [&](const Spread& spread, const std::string& flag) {
    EXPECT_NE(message(spread).find(flag), std::string::npos) << message(spread);
  };
  expect({.schedule = "dualpipe", .pipeline = 3, .microbatches = 8}, "--ranks");
  expect({.schedule = "dualpipe", .pipeline = 2, .microbatches = 5}, "--microbatches");
  expect({.schedule = "dualpipe", .pipeline = 4, .microbatches = 6}, "--microbatches");
  expect({.schedule = "chimera", .pipeline = 3, .microbatches = 6}, "--ranks");
  expect({.schedule = "chimera", .pipeline = 4, .microbatches = 6}, "--microbatches");
}

// The losses of a step lie on two ranks; they are added in the order of global micro-batches.
TEST_F(Mirrored, LossesAreTakenFromTheRankOfTheirDirectionInGlobalOrder) {
  const Spread spread = {.schedule = "chimera", .pipeline = 2, .replicas = 2};
  const Job job = make_job(config_of(spread), spread.ranks(), 0);
  const schedule::Placement& placement = job.schedule.placement;
  const Contribution contribution(optimizer_shape(job.request, placement, 0));
  const std::vector<int> losses = contribution.positions().losses;
  for (int microbatch = 0; microbatch < 4; ++microbatch) {
    for (int replica = 0; replica < 2; ++replica) {
      const int rank = placement.owner(1, microbatch) * 2 + replica;
      const size_t global = size_t(microbatch) * 2 + size_t(replica);
      EXPECT_EQ(losses[global], rank * int(contribution.elements()) + microbatch);
    }
  }
  EXPECT_NE(placement.owner(1, 0), placement.owner(1, 1));
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
