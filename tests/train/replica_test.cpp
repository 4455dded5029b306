#ifdef PIPETRAIN_HOST

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "train/device_values.h"
#include "train/engine_run.h"
#include "train/oracle.h"

// Data parallelism: the sums, the losses and the weights of several replicas are those of one.

namespace pipetrain {
namespace {

using test::config_of;
using test::EngineResult;
using test::EngineRun;
using test::one_stage;
using test::run_engines;
using test::Spread;

class Replicas : public testing::Test {
 protected:
  test::EmulatorSettings settings_;
};

// All ways to cut the oracle's 16 sequences of a step.
TEST_F(Replicas, EveryCutOfTheGlobalBatchMatchesTheOracle) {
  const auto train = [](int replicas, int microbatches, Precision precision, int zero) {
    TrainConfig config = test::fixture_config();
    config.data_parallel = replicas;
    config.microbatches = microbatches;
    config.microbatch_size = 16 / (replicas * microbatches);
    config.precision = precision;
    config.zero = zero;
    SCOPED_TRACE(testing::Message() << "d=" << replicas << " m=" << microbatches << " "
                                    << pipetrain::to_string(precision));
    test::expect_matches_oracle(test::train_on_threads(config, 2 * replicas), precision);
  };
  for (const int microbatches : {1, 2, 4, 8, 16}) {
    train(1, microbatches, Precision::fp32, 0);
  }
  for (const int microbatches : {1, 2, 4, 8}) {
    train(2, microbatches, Precision::fp32, microbatches % 4 == 1);
  }
  train(2, 4, Precision::fp64, 1);
  train(2, 4, Precision::bf16, 1);
}

// Fault 10: an exchange or a sum uses the group of another pipeline. Fault 19: the reduction fires
// at the wrong micro-batch when there are several chunks, or misses a stage. Fault 20: a deferred
// weight gradient runs after it. Fault 25: the V placement puts layers in the wrong order.
TEST_F(Replicas, EveryPipelineHasTheBitsOfOneStage) {
  uint64_t seed = 1;
  for (Spread spread : {Spread{.pipeline = 2, .microbatches = 3},
                        {.schedule = "gpipe", .pipeline = 4, .microbatches = 2},
                        {.schedule = "interleaved", .pipeline = 2, .chunks = 2},
                        {.schedule = "interleaved", .pipeline = 2, .chunks = 4},
                        {.schedule = "looped-bfs", .pipeline = 4, .chunks = 2},
                        {.schedule = "zb-h1", .pipeline = 4, .microbatches = 5},
                        {.schedule = "zb-h2", .pipeline = 2, .microbatches = 5},
                        {.schedule = "zb-v", .pipeline = 2},
                        {.schedule = "v-half", .pipeline = 2},
                        {.schedule = "dualpipe-v", .pipeline = 2, .microbatches = 4},
                        {.schedule = "zb-h1", .pipeline = 2, .precision = Precision::bf16}}) {
    spread.replicas = 2;
    spread.zero = int(seed % 2);
    SCOPED_TRACE(to_string(spread));
    settings_.disturb(seed++);
    test::expect_same_bits(run_engines(spread), one_stage(spread));
  }
}

TEST_F(Replicas, ZeroOneHasTheBitsOfZeroZero) {
  for (Spread spread : {Spread{.pipeline = 1, .replicas = 2},
                        {.pipeline = 1, .replicas = 3},
                        {.schedule = "zb-v", .pipeline = 2, .replicas = 2},
                        {.pipeline = 2, .replicas = 3, .precision = Precision::bf16},
                        {.pipeline = 1, .replicas = 4, .precision = Precision::fp64}}) {
    SCOPED_TRACE(to_string(spread));
    const EngineResult whole = run_engines(spread);
    spread.zero = 1;
    test::expect_same_bits(run_engines(spread), whole);
  }
}

// Tensors of many blocks of squares, so that shards are cut inside them.
TEST_F(Replicas, ZeroOneHasTheBitsOfZeroZeroWhereShardsCutTensors) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const auto run = [&](int pipeline, int zero) {
      const Spread spread = {.pipeline = pipeline,
                             .microbatches = 2,
                             .replicas = 3,
                             .zero = zero,
                             .precision = precision};
      EngineRun engines{config_of(spread), spread.ranks()};
      engines.config.init = "";
      engines.config.layers = 2;
      engines.config.hidden = 136;
      engines.config.heads = 1;
      engines.config.vocab_size = 300;
      return run_engines(engines);
    };
    const EngineResult whole = run(1, 0);
    test::expect_same_bits(run(1, 1), whole);
    test::expect_same_bits(run(2, 1), whole);
  }
}

// What is written from shards: gradients, and masters in the export.
TEST_F(Replicas, FilesFromShardsAreThoseFromWholeState) {
  const auto train = [](int zero) {
    TrainConfig config = test::fixture_config();
    config.data_parallel = 2;
    config.microbatches = 2;
    config.precision = Precision::bf16;
    config.steps = 3;
    config.zero = zero;
    return test::train_on_threads(config, 4);
  };
  const test::Training whole = train(0);
  const test::Training shards = train(1);
  EXPECT_EQ(shards.losses(), whole.losses());
  EXPECT_TRUE(shards.gradients == whole.gradients);
  EXPECT_TRUE(shards.weights == whole.weights);
}

TEST_F(Replicas, TwoReplicasAreOneOfTwiceAsManyMicrobatches) {
  for (const int microbatches : {1, 2, 3, 4}) {
    SCOPED_TRACE(microbatches);
    test::expect_near(one_stage({.microbatches = microbatches, .replicas = 2}),
                      one_stage({.microbatches = 2 * microbatches}), 1e-6);
  }
}

// Every sequence has as many valid targets as its number modulo 5, the rest is ignored.
class UnevenTargets final : public DataSource {
 public:
  UnevenTargets(const Job& job, std::unique_ptr<DataSource> source)
      : shape_(job.batch), source_(std::move(source)) {}

  void fill(int64_t step, int replica, int* inputs, int* targets) const override {
    source_->fill(step, replica, inputs, targets);
    for (int i = 0; targets != nullptr && i < shape_.microbatches; ++i) {
      for (int b = 0; b < shape_.batch; ++b) {
        const int sequence = (i * shape_.replicas + replica) * shape_.batch + b;
        int* of_sequence = targets + (i * shape_.batch + b) * shape_.sequence;
        std::fill(of_sequence + sequence % 5, of_sequence + shape_.sequence, -1);
      }
    }
  }
  size_t valid_targets(int64_t) const override {
    size_t valid = 0;
    for (size_t sequence = 0; sequence < shape_.global_microbatches() * size_t(shape_.batch);
         ++sequence) {
      valid += sequence % 5;
    }
    return valid;
  }

 private:
  BatchShape shape_;
  std::unique_ptr<DataSource> source_;
};

// Fault 18: unequal numbers of valid targets are averaged per micro-batch or per replica.
TEST_F(Replicas, EveryValidTargetWeighsTheSame) {
  const auto train = [](const Spread& spread, int batch) {
    EngineRun run{config_of(spread), spread.ranks()};
    run.config.microbatch_size = batch;
    run.source = [](const Job& job) {
      return std::make_unique<UnevenTargets>(
          job, std::make_unique<TokenBatches>(*job.tokens, job.batch, job.model.config.vocabulary,
                                              false, 1));
    };
    return run_engines(run);
  };
  const EngineResult one = train({.microbatches = 1}, 8);
  test::expect_near(train({.microbatches = 8}, 1), one, 1e-6);
  test::expect_near(train({.microbatches = 2, .replicas = 2}, 2), one, 1e-6);
  test::expect_near(train({.pipeline = 2, .microbatches = 4, .replicas = 2, .zero = 1}, 1), one,
                    1e-6);
}

// Fault 27: a value that is not finite on one stage of one replica, and the others step anyway.
TEST_F(Replicas, AllSkipAStepThatIsNotFiniteOnOneRank) {
  for (const int zero : {0, 1}) {
    for (const int broken : {0, 1, 2, 3}) {
      const Spread spread = {.pipeline = 2, .replicas = 2, .zero = zero};
      SCOPED_TRACE(to_string(spread) + " rank " + std::to_string(broken));
      EngineRun run{config_of(spread), spread.ranks(), 2};
      // One rank computes the first step with an infinite weight.
      std::vector<float> kept(size_t(spread.ranks()));
      const auto weight_of = [](const Engine& engine) {
        return engine.parameters().parameters().back().weight;
      };
      run.before = [&](int64_t step, const Job& job, Engine& engine) {
        kept[size_t(job.grid.rank)] =
            float(device_values(weight_of(engine), 1, Precision::fp32).front());
        if (step == 0 && job.grid.rank == broken) {
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
      EXPECT_EQ(result.steps[1].updates, 1);
      EXPECT_FALSE(result.weights[2] == result.weights[1]);
    }
  }
}

// Fault 26: initial weights depend on how the model is spread, or stages are seeded alike.
TEST_F(Replicas, InitialWeightsAreThoseOfOneDevice) {
  const auto initial = [](const Spread& spread) {
    EngineRun run{config_of(spread), spread.ranks(), 0};
    run.config.init = "";
    run.config.layers = 4;
    run.config.hidden = 16;
    run.config.heads = 2;
    run.config.vocab_size = 257;
    return run_engines(run).weights.front();
  };
  const test::Tensors one = initial({});
  std::set<std::vector<double>> different;
  for (const auto& [name, values] : one) {
    if (name.find("weight") != std::string::npos && name.find("ln_") == std::string::npos) {
      EXPECT_TRUE(different.insert(values).second) << name << " is like another weight";
    }
  }
  for (const Spread& spread : {Spread{.pipeline = 2, .replicas = 2},
                               {.pipeline = 4, .replicas = 2, .zero = 1},
                               {.schedule = "interleaved", .pipeline = 2, .chunks = 4},
                               {.schedule = "zb-v", .pipeline = 2, .replicas = 2},
                               {.schedule = "chimera", .pipeline = 4}}) {
    SCOPED_TRACE(to_string(spread));
    EXPECT_TRUE(initial(spread) == one);
  }
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
