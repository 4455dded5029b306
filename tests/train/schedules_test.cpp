#ifdef PIPETRAIN_HOST

#include <gtest/gtest.h>

#include <optional>

#include "pipetrain/error.h"
#include "pipetrain/schedule/generate.h"
#include "train/engine_run.h"

// Every schedule trains, and the result is that of one stage.

namespace pipetrain {
namespace {

using test::config_of;
using test::EngineResult;
using test::one_stage;
using test::run_engines;
using test::Spread;

bool synchronous(const std::string& name) {
  return name.rfind("pipedream", 0) != 0;
}
bool mirrored(const Spread& spread) {
  return spread.schedule == "dualpipe" || spread.schedule == "chimera";
}

class Schedules : public testing::Test {
 protected:
  test::EmulatorSettings settings_;
};

// Fault 1: fewer micro-batches than ranks hang or are refused. Fault 2: with two ranks and two
// chunks the next rank is the previous one. Fault 25: the V placement is missing in the model.
TEST_F(Schedules, HaveTheBitsOfOneStage) {
  uint64_t seed = 1;
  for (const Spread& spread :
       {Spread{.schedule = "gpipe", .pipeline = 3, .microbatches = 1},
        {.schedule = "1f1b", .pipeline = 4, .microbatches = 2},
        {.schedule = "interleaved", .pipeline = 2, .chunks = 2},
        {.schedule = "interleaved", .pipeline = 4, .microbatches = 3},
        {.schedule = "interleaved", .pipeline = 1, .chunks = 4},
        {.schedule = "looped-bfs", .pipeline = 2, .chunks = 4},
        {.schedule = "zb-h1", .pipeline = 4, .microbatches = 5},
        {.schedule = "zb-h1", .pipeline = 2, .microbatches = 1},
        {.schedule = "zb-h2", .pipeline = 3, .microbatches = 5},
        {.schedule = "zb-v", .pipeline = 1},
        {.schedule = "zb-v", .pipeline = 4, .microbatches = 3},
        {.schedule = "v-half", .pipeline = 4, .microbatches = 5},
        {.schedule = "v-min", .pipeline = 3, .microbatches = 4},
        {.schedule = "dualpipe-v", .pipeline = 2, .microbatches = 5},
        {.schedule = "v-min", .pipeline = 2, .precision = Precision::bf16},
        {.schedule = "zb-h2", .pipeline = 2, .precision = Precision::fp64}}) {
    SCOPED_TRACE(to_string(spread));
    settings_.disturb(seed++);
    test::expect_same_bits(run_engines(spread), one_stage(spread));
  }
}

// Fault 9: a stage without layers, or without parameters, skips a collective and the others hang.
TEST_F(Schedules, StagesWithoutLayersPassEverythingOn) {
  const auto run = [&](const Spread& spread, const std::vector<int>& layers) {
    SCOPED_TRACE(to_string(spread));
    test::EngineRun engines{config_of(spread), spread.ranks()};
    engines.config.layers_per_stage = layers;
    return run_engines(engines);
  };
  const auto expect = [&](const Spread& spread, const std::vector<int>& layers) {
    const EngineResult result = run(spread, layers);
    if (mirrored(spread)) {
      test::expect_near(result, one_stage(spread), 1e-6);
    } else {
      test::expect_same_bits(result, one_stage(spread));
    }
  };
  uint64_t seed = 1;
  for (const int replicas : {1, 2}) {
    settings_.disturb(seed++);
    const int zero = replicas - 1;
    const Spread empty = {.schedule = "1f1b", .pipeline = 4, .replicas = replicas, .zero = zero};
    expect(empty, {0, 5, 0, 3});
    expect(empty, {8, 0, 0, 0});
    expect({.schedule = "zb-v", .pipeline = 2, .replicas = replicas, .zero = zero}, {0, 8, 0, 0});
    expect(
        {.schedule = "interleaved", .pipeline = 4, .chunks = 4, .replicas = replicas, .zero = zero},
        {});
    expect({.schedule = "dualpipe", .pipeline = 2, .replicas = replicas, .zero = zero}, {8, 0});
    expect({.schedule = "chimera", .pipeline = 4, .replicas = replicas, .zero = zero},
           {0, 8, 0, 0});
  }
}

// Fault 14: copies of a tied embedding drift apart (run_engines compares all copies after every
// step). Fault 15: the tied weight counts twice in the norm. Fault 16: a stage clips by its own
// norm. All over stages and replicas, with a limit below the norm and with none.
TEST_F(Schedules, TiedEmbeddingNormAndClippingAreThoseOfOneStage) {
  for (const double limit : {0.05, 0.0}) {
    const auto run = [&](const Spread& spread) {
      test::EngineRun engines{config_of(spread), spread.ranks(), 4};
      engines.config.grad_clip = limit;
      return run_engines(engines);
    };
    const EngineResult one = run({.replicas = 2});
    EXPECT_GT(one.steps[0].grad_norm, 0.5);
    test::expect_same_bits(run({.pipeline = 2, .replicas = 2}), one);
    test::expect_same_bits(run({.schedule = "zb-v", .pipeline = 2, .replicas = 2, .zero = 1}), one);
    test::expect_same_bits(
        run({.schedule = "interleaved", .pipeline = 3, .chunks = 2, .replicas = 2}), one);
    test::expect_near(run({.schedule = "chimera", .pipeline = 2, .replicas = 2}), one, 1e-6);
  }
}

// ---- the full product

// nullopt: the schedule refuses it, with the error of a user's mistake.
std::optional<EngineResult> run_unless_refused(const Spread& spread) {
  try {
    make_job(config_of(spread), spread.ranks(), 0);
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return run_engines(spread);
}

class SweepEverySchedule : public testing::TestWithParam<std::string> {
 protected:
  void sweep(int replicas, Precision precision);
  test::EmulatorSettings settings_;
};

void SweepEverySchedule::sweep(int replicas, Precision precision) {
  uint64_t seed = 1;
  int runs = 0;
  for (const int pipeline : {1, 2, 4, 8}) {
    for (const int chunks : {1, 2, 4}) {
      for (int microbatches = 1; microbatches <= 2 * pipeline + 1; ++microbatches) {
        Spread spread = {GetParam(), pipeline, chunks, microbatches, replicas, 0, precision};
        SCOPED_TRACE(to_string(spread));
        settings_.disturb(seed++);
        const std::optional<EngineResult> result = run_unless_refused(spread);
        if (!result) {
          continue;
        }
        ++runs;
        if (!mirrored(spread)) {
          test::expect_same_bits(*result, one_stage(spread));
        } else if (precision == Precision::fp32) {
          test::expect_near(*result, one_stage(spread), 1e-6);
        }
        if (replicas > 1) {
          spread.zero = 1;
          settings_.disturb(seed++);
          test::expect_same_bits(run_engines(spread), *result);
        }
      }
    }
  }
  EXPECT_GT(runs, 0);
}

TEST_P(SweepEverySchedule, OfOneReplicaInFp32) {
  sweep(1, Precision::fp32);
}
TEST_P(SweepEverySchedule, OfOneReplicaInBf16) {
  sweep(1, Precision::bf16);
}
TEST_P(SweepEverySchedule, OfTwoReplicasInFp32) {
  sweep(2, Precision::fp32);
}
TEST_P(SweepEverySchedule, OfTwoReplicasInBf16) {
  sweep(2, Precision::bf16);
}

std::vector<std::string> synchronous_schedules() {
  std::vector<std::string> names = schedule::schedule_names();
  std::erase_if(names, [](const std::string& name) { return !synchronous(name); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(, SweepEverySchedule, testing::ValuesIn(synchronous_schedules()),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
