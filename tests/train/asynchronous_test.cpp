#ifdef PIPETRAIN_HOST

#include <emulator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "pipetrain/train/safetensors.h"
#include "pipetrain/train/trainer.h"
#include "support/rank_threads.h"
#include "train/delayed_reference.h"
#include "train/device_values.h"
#include "train/engine_run.h"
#include "train/temporary.h"
#include "train/training.h"

// pipedream and pipedream-2bw: weights that are used later than they change.

namespace pipetrain {
namespace {

using test::config_of;
using test::EngineResult;
using test::EngineRun;
using test::run_engines;
using test::Spread;

class Asynchronous : public testing::Test {
 protected:
  // Against the reference, which is made once per job.
  void expect_the_rule(const Spread& spread, int64_t steps, const std::vector<uint64_t>& seeds) {
    SCOPED_TRACE(to_string(spread));
    settings_.calm();
    const EngineResult reference =
        test::delayed_reference(config_of(spread), spread.ranks(), steps);
    for (const uint64_t seed : seeds) {
      SCOPED_TRACE(seed);
      settings_.disturb(seed);
      test::expect_same_bits(run_engines(spread, steps), reference);
    }
  }
  test::EmulatorSettings settings_;
};

TEST_F(Asynchronous, EveryStepHasTheBitsOfTheDelayedUpdateRule) {
  uint64_t seed = 1;
  for (const Spread& spread :
       {Spread{.schedule = "pipedream", .pipeline = 1, .microbatches = 3},
        {.schedule = "pipedream", .pipeline = 2, .microbatches = 1},
        {.schedule = "pipedream", .pipeline = 4, .microbatches = 9},
        {.schedule = "pipedream", .pipeline = 4, .microbatches = 3},
        {.schedule = "pipedream", .pipeline = 2, .precision = Precision::bf16},
        {.schedule = "pipedream-2bw", .pipeline = 1, .microbatches = 2},
        {.schedule = "pipedream-2bw", .pipeline = 4, .microbatches = 5},
        {.schedule = "pipedream-2bw", .pipeline = 2, .precision = Precision::bf16}}) {
    expect_the_rule(spread, 3, {seed});
    ++seed;  // every third one: one transfer at a time
  }
}

// Fault 9: a stage without parameters has no update of its own.
TEST_F(Asynchronous, StagesWithoutLayersPassEverythingOn) {
  for (const std::string schedule : {"pipedream", "pipedream-2bw"}) {
    const Spread spread = {.schedule = schedule, .pipeline = 4};
    SCOPED_TRACE(to_string(spread));
    EngineRun run{config_of(spread), 4};
    run.config.layers_per_stage = {0, 5, 0, 3};
    test::expect_same_bits(run_engines(run), test::delayed_reference(run.config, 4, 3));
  }
}

// One stage has no version but the current one: an update per micro-batch is 1f1b with one
// micro-batch to a step.
TEST_F(Asynchronous, OneStageOfPipedreamTrainsWithEveryMicrobatchAlone) {
  const TemporaryDirectory directory;
  const std::string untied = directory.file("untied");
  TrainConfig config = config_of({.schedule = "pipedream", .pipeline = 2});
  config.steps = 2;
  config.export_dir = untied;
  test::run_ranks(2, [&](Control& control) { train(config, control); });
  EXPECT_NE(read_file(untied + "/config.json").find("\"tie_word_embeddings\": false"),
            std::string::npos);

  EngineRun alone{config_of({.microbatches = 1}), 1, 8};
  alone.config.grad_clip = 0;
  EngineRun pipedream{config_of({.schedule = "pipedream"}), 1, 2};
  alone.config.init = pipedream.config.init = untied;
  const EngineResult expected = run_engines(alone);
  const EngineResult result = run_engines(pipedream);
  for (size_t step = 0; step < 2; ++step) {
    EXPECT_TRUE(result.weights[step + 1] == expected.weights[4 * (step + 1)]) << step;
    double loss = 0;
    for (size_t i = 0; i < 4; ++i) {
      loss += expected.steps[4 * step + i].loss / 4;
    }
    EXPECT_NEAR(result.steps[step].loss, loss, 1e-6 * loss);
    EXPECT_EQ(result.steps[step].updates, 4 * (int64_t(step) + 1));
  }
}

TEST_F(Asynchronous, TheHeadBeginsWithTheEmbeddingOfATiedFileAndGoesItsOwnWay) {
  const EngineResult result = run_engines({.schedule = "pipedream", .pipeline = 2}, 1);
  EXPECT_TRUE(result.weights[0].at("lm_head.weight") == result.weights[0].at("wte.weight"));
  EXPECT_FALSE(result.weights[1].at("lm_head.weight") == result.weights[1].at("wte.weight"));
}

// The exported weights are the newest ones.
TEST_F(Asynchronous, ExportedWeightsAndReportedLossesAreThoseOfTheRule) {
  for (const std::string schedule : {"pipedream", "pipedream-2bw"}) {
    const Spread spread = {.schedule = schedule, .pipeline = 2, .microbatches = 3};
    SCOPED_TRACE(to_string(spread));
    TrainConfig config = config_of(spread);
    config.steps = 3;
    const EngineResult reference = test::delayed_reference(config, 2, 3);
    const test::Training training = test::train_on_threads(config, 2);
    EXPECT_EQ(training.losses(), reference.losses());
    EXPECT_EQ(training.norms(), reference.norms());
    const TemporaryDirectory directory;
    write_file(directory.file("ours"), training.weights);
    const SafetensorsFile file(directory.file("ours"), "ours");
    for (const auto& [name, values] : reference.weights.back()) {
      const TensorInfo* tensor = file.find(name);
      tensor = tensor == nullptr ? file.find("transformer." + name) : tensor;
      ASSERT_NE(tensor, nullptr) << name;
      EXPECT_TRUE(file.values(*tensor) == values) << name;
    }
  }
}

// run_engines compares the copies after every step.
TEST_F(Asynchronous, ReplicasAreOneOfTwiceAsLargeMicrobatches) {
  const auto run = [](const Spread& spread, int batch) {
    EngineRun engines{config_of(spread), spread.ranks()};
    engines.config.microbatch_size = batch;
    return run_engines(engines);
  };
  uint64_t seed = 1;
  for (const std::string schedule : {"pipedream", "pipedream-2bw"}) {
    Spread spread = {.schedule = schedule, .pipeline = 2};
    const EngineResult one = run(spread, 2);
    spread.replicas = 2;
    for (const int zero : {0, 1}) {
      settings_.disturb(seed++);
      spread.zero = zero;
      SCOPED_TRACE(to_string(spread));
      const EngineResult result = run(spread, 1);
      EXPECT_EQ(result.weights.size(), one.weights.size());
      for (size_t step = 0; step < one.steps.size(); ++step) {
        EXPECT_NEAR(result.steps[step].loss, one.steps[step].loss, 1e-6 * one.steps[step].loss);
        EXPECT_NEAR(result.steps[step].grad_norm, one.steps[step].grad_norm,
                    1e-5 * one.steps[step].grad_norm);
      }
      if (zero == 1) {
        spread.zero = 0;
        test::expect_same_bits(result, run(spread, 1));
      }
    }
  }
}

// Fault 27 where stages are updated one by one: what is not finite changes no stage.
TEST_F(Asynchronous, UpdatesThatAreNotFiniteAreLeftOutOnAllStages) {
  for (const int zero : {0, 1}) {
    const Spread spread = {.schedule = "pipedream", .pipeline = 2, .replicas = 2, .zero = zero};
    SCOPED_TRACE(to_string(spread));
    EngineRun run{config_of(spread), spread.ranks(), 2};
    std::vector<float> kept(size_t(spread.ranks()));
    const auto weight_of = [](const Engine& engine) {
      return engine.parameters().parameters().back().weight;
    };
    run.before = [&](int64_t step, const Job& job, Engine& engine) {
      kept[size_t(job.grid.rank)] =
          float(device_values(weight_of(engine), 1, Precision::fp32).front());
      if (step == 0 && job.grid.pipeline_rank() == 0) {
        set_device_values(weight_of(engine), {INFINITY}, Precision::fp32);
      }
    };
    run.after = [&](int64_t step, const Job& job, Engine& engine) {
      if (step == 0) {
        set_device_values(weight_of(engine), {kept[size_t(job.grid.rank)]}, Precision::fp32);
      }
    };
    const EngineResult result = run_engines(run);
    EXPECT_TRUE(result.steps[0].skipped);
    EXPECT_TRUE(result.weights[1] == result.weights[0]);
    EXPECT_FALSE(result.steps[1].skipped);
    EXPECT_EQ(result.steps[1].updates, 4);
    EXPECT_FALSE(result.weights[2] == result.weights[1]);
  }
}

// ---- memory

const std::vector<Spread>& memory_spreads() {
  static const std::vector<Spread> list = {
      {.schedule = "pipedream", .pipeline = 4, .microbatches = 8},
      {.schedule = "pipedream", .pipeline = 2, .replicas = 2, .zero = 1},
      {.schedule = "pipedream", .pipeline = 2, .precision = Precision::bf16},
      {.schedule = "pipedream-2bw", .pipeline = 2},
      {.schedule = "pipedream-2bw", .pipeline = 2, .replicas = 2, .zero = 1},
      {.schedule = "pipedream-2bw", .pipeline = 2, .precision = Precision::bf16}};
  return list;
}

// Fault 31: one buffer too many, of weights here.
TEST_F(Asynchronous, TheHighWaterMarkIsTheBudgetAndAStepNeitherAllocatesNorWaits) {
  for (const Spread& spread : memory_spreads()) {
    test::run_ranks(spread.ranks(), [&](Control& control) {
      SCOPED_TRACE(to_string(spread));
      emulator::reset_counters(control.rank());
      const Job job = make_job(config_of(spread), spread.ranks(), control.rank());
      Engine engine(job, control, nullptr);
      engine.set_initial_weights();
      for (int64_t step = 0; step < 2; ++step) {
        engine.submit(step, {.learning_rate = 1e-3});
        engine.wait(step);
      }
      EXPECT_EQ(emulator::counters(control.rank()).high_water, job.budget.allocated());
      EXPECT_EQ(engine.activations().touched_slots(), engine.activations().slots());
      emulator::reset_counters(control.rank());
      engine.submit(2, {.learning_rate = 1e-3});
      const emulator::Counters counters = emulator::counters(control.rank());
      EXPECT_EQ(counters.allocations, 0);
      EXPECT_EQ(counters.synchronisations, 0);
      engine.wait(2);
      engine.drain();
      control.barrier();
    });
  }
}

// Masters once, weights in use once per version: rank r of pipedream has p-r of them, 2bw two.
TEST_F(Asynchronous, TheBudgetHoldsEveryVersionOfTheWeightsAndTheMastersOnce) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (int rank = 0; rank < 4; ++rank) {
      Spread spread = {.pipeline = 4, .microbatches = 8, .precision = precision};
      const auto job_of = [&](const std::string& schedule) {
        spread.schedule = schedule;
        return make_job(config_of(spread), 4, rank);
      };
      for (const std::string schedule : {"pipedream", "pipedream-2bw"}) {
        const Job job = job_of(schedule);
        const StoreHolder store(job.request.model, {job.request.stages[size_t(rank)]}, precision);
        const size_t in_use = store.store().weights(0).size();
        const size_t one_version =
            ParameterStore::bytes(job.request.model, store.store().stages(), precision).weights;
        const size_t versions = schedule == "pipedream" ? size_t(4 - rank) : 2;
        EXPECT_EQ(job.budget.weights, one_version + (versions - 1) * in_use) << schedule;
      }
    }
  }
}

// ---- the full product

class SweepAsynchronous : public Asynchronous, public testing::WithParamInterface<std::string> {
 protected:
  void sweep(Precision precision) {
    uint64_t seed = 1;
    for (const int pipeline : {1, 2, 4, 8}) {
      for (int microbatches = 1; microbatches <= 2 * pipeline + 1; ++microbatches) {
        if (GetParam() == "pipedream-2bw" && microbatches < pipeline) {
          continue;  // refused
        }
        expect_the_rule({.schedule = GetParam(),
                         .pipeline = pipeline,
                         .microbatches = microbatches,
                         .precision = precision},
                        4, {seed, seed + 1, seed + 2});
        seed += 3;
      }
    }
  }
};

TEST_P(SweepAsynchronous, OfOneReplicaInFp32) {
  sweep(Precision::fp32);
}
TEST_P(SweepAsynchronous, OfOneReplicaInBf16) {
  sweep(Precision::bf16);
}

INSTANTIATE_TEST_SUITE_P(, SweepAsynchronous, testing::Values("pipedream", "pipedream-2bw"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
