#include "pipetrain/train/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "pipetrain/error.h"
#include "tests/support/rank_threads.h"
#include "tests/train/optimizer_rig.h"
#ifdef PIPETRAIN_HOST
#include "emulator.h"
#endif

namespace pipetrain {
namespace {

using namespace optimizer_rig;

void expect_near(const Outcome& got, const Outcome& expected, double tolerance) {
  for (size_t step = 0; step < expected.results.size(); ++step) {
    if (!got.results[step].skipped) {
      const double norm = expected.results[step].grad_norm;
      EXPECT_NEAR(got.results[step].grad_norm, norm, tolerance * norm);
      EXPECT_NEAR(got.results[step].loss, expected.results[step].loss, 10 * tolerance);
    }
  }
  for (const auto& [name, values] : expected.masters) {
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(got.masters.at(name)[i] - values[i], 2);
      size += std::pow(values[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(size)) << name;
  }
}

void expect_equal(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.masters.size(), b.masters.size());
  for (const auto& [name, values] : a.masters) {
    EXPECT_EQ(values, b.masters.at(name)) << name;
  }
  for (size_t step = 0; step < a.results.size(); ++step) {
    EXPECT_EQ(a.results[step].grad_norm, b.results[step].grad_norm);
    EXPECT_EQ(a.results[step].loss, b.results[step].loss);
  }
}

Case case_of(std::vector<std::vector<StageLayers>> stages, Precision precision = Precision::fp32) {
  Case test;
  test.stages = std::move(stages);
  test.precision = precision;
  return test;
}

TEST(Optimizer, IsTorchAdamWWithClippingOnOneRank) {
  const Case single = case_of(loop(1));
  expect_near(run(single), reference(single), 2e-6);
#ifdef PIPETRAIN_HOST
  const Case fp64 = case_of(loop(1), Precision::fp64);
  expect_near(run(fp64), reference(fp64), 1e-13);
#endif
}

TEST(Optimizer, LargeAndAbsentClipLimitsChangeNothing) {
  Case test = case_of(loop(1));
  test.options.grad_clip = 0;
  test.options.weight_decay = 0;
  expect_near(run(test), reference(test), 2e-6);
  const Outcome absent = run(test);
  test.options.grad_clip = 1e9;
  expect_equal(run(test), absent);
}

// Faults 14, 15, 16: copies of a tied weight drift apart, it counts twice in the norm, a stage
// clips by its own norm.
TEST(Optimizer, ResultDoesNotDependOnTheNumberOfRanks) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Outcome one = run(case_of(loop(1), precision));
    for (int ranks = 2; ranks <= 4; ++ranks) {
      expect_equal(run(case_of(loop(ranks), precision)), one);
    }
    expect_equal(run(case_of(both_ends_on_rank_0(2), precision)), one);
  }
}

// Fault 27: a value that is not finite on one stage, and the others step anyway.
TEST(Optimizer, AllRanksSkipAStepThatIsNotFiniteOnOne) {
  for (int broken = 0; broken < 3; ++broken) {
    Case test = case_of(loop(3));
    test.broken_rank = broken;
    const Outcome outcome = run(test);
    for (int64_t step = 0; step < test.steps; ++step) {
      EXPECT_EQ(outcome.results[size_t(step)].skipped, step == 4);
      EXPECT_EQ(outcome.results[size_t(step)].updates, step < 4 ? step + 1 : step);
    }
    EXPECT_TRUE(std::isnan(outcome.results[4].grad_norm));
    expect_near(outcome, reference(test), 2e-6);
  }
}

TEST(Optimizer, StopRequestsAndBusyTimesReachAllRanks) {
  Case test = case_of(loop(3));
  test.steps = 4;
  test.stopping_rank = 1;
  const Outcome outcome = run(test);
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_EQ(outcome.results[step].stop, step == 2);
    const double base = 10 * double(step);
    EXPECT_EQ(outcome.results[step].busy, (std::vector<double>{base, base + 1, base + 2}));
  }
}

TEST(Optimizer, WeightsInUseAreTheMastersRoundedAndPadRowsStayZero) {
  const Case test = case_of(loop(1), Precision::bf16);
  test::run_ranks(1, [&](Control& control) {
    Rank rank(test, control);
    rank.optimizer().begin_step(rank.stream());
    rank.stream().synchronize();
    rank.fill_gradients(0);
    rank.submit(0);
    rank.optimizer().wait_result(0);
    for (const LocalParameter& local : rank.store().parameters()) {
      const size_t padded = local.parameter->padded_elements;
      const std::vector<double> masters = rank.download(local.master, padded);
      const std::vector<double> weights =
          local.weight == local.master ? masters : device_bf16_values(local.weight, padded);
      for (size_t i = 0; i < padded; ++i) {
        const double spacing = std::ldexp(1, std::ilogb(std::max(1e-30, std::abs(masters[i]))) - 7);
        ASSERT_LE(std::abs(weights[i] - masters[i]), spacing / 2) << local.parameter->name;
        if (i >= local.parameter->elements()) {
          ASSERT_EQ(weights[i], 0);
        }
      }
    }
  });
}

TEST(Optimizer, BeginStepClearsAllGradients) {
  const Case test = case_of(loop(1));
  test::run_ranks(1, [&](Control& control) {
    Rank rank(test, control);
    rank.fill_gradients(0);
    rank.optimizer().begin_step(rank.stream());
    rank.stream().synchronize();
    for (const LocalParameter& local : rank.store().parameters()) {
      const std::vector<double> zeros(local.parameter->padded_elements);
      EXPECT_EQ(rank.download(local.gradient, zeros.size()), zeros);
      if (local.parameter->tied) {
        EXPECT_EQ(rank.download(local.head_gradient, zeros.size()), zeros);
      }
    }
  });
}

TEST(Optimizer, ResultsAreTakenOnceAndInTime) {
  const Case test = case_of(loop(1));
  test::run_ranks(1, [&](Control& control) {
    Rank rank(test, control);
    EXPECT_THROW(rank.optimizer().wait_result(0), InternalError);
    rank.submit(0);
    rank.submit(1);
    EXPECT_THROW(rank.submit(2), InternalError);
    EXPECT_EQ(rank.optimizer().wait_result(0).step, 0);
    EXPECT_THROW(rank.optimizer().wait_result(0), InternalError);
    rank.submit(2);
    EXPECT_EQ(rank.optimizer().wait_result(1).step, 1);
    EXPECT_EQ(rank.optimizer().wait_result(2).step, 2);
  });
}

TEST(Optimizer, TiedRanksAreTheEndsOfATiedModel) {
  Optimizer::Shape shape{model(), Precision::fp32, loop(4), 0, 1};
  EXPECT_EQ(Optimizer::tied_ranks(shape), (std::vector<int>{0, 3}));
  shape.stages = both_ends_on_rank_0(2);
  EXPECT_EQ(Optimizer::tied_ranks(shape), (std::vector<int>{0}));
  shape.config.tied_head = false;
  EXPECT_EQ(Optimizer::tied_ranks(shape), (std::vector<int>{}));
}

#ifdef PIPETRAIN_HOST
TEST(Optimizer, StepNeitherWaitsForTheHostNorAllocates) {
  const Case test = case_of(loop(1));
  test::run_ranks(1, [&](Control& control) {
    Rank rank(test, control);
    for (int64_t step = 0; step < 2; ++step) {
      rank.optimizer().begin_step(rank.stream());
      rank.submit(step);
      rank.optimizer().wait_result(step);
    }
    emulator::reset_counters(0);
    rank.optimizer().begin_step(rank.stream());
    rank.submit(2);
    const emulator::Counters counters = emulator::counters(0);
    EXPECT_EQ(counters.synchronisations, 0);
    EXPECT_EQ(counters.allocations, 0);
    rank.optimizer().wait_result(2);
  });
}

TEST(Optimizer, RandomDelaysChangeNothing) {
  const Outcome plain = run(case_of(loop(3)));
  const emulator::Settings before = emulator::settings();
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    emulator::Settings settings = before;
    settings.delay_seed = seed;
    settings.max_delay_us = 50;
    emulator::set_settings(settings);
    expect_equal(run(case_of(loop(3))), plain);
  }
  emulator::set_settings(before);
}
#endif

}  // namespace
}  // namespace pipetrain
