#ifdef PIPETRAIN_HOST

#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "support/rank_threads.h"
#include "train/engine_run.h"

// What replicas and copies allocate, wait for and leave alone.

namespace pipetrain {
namespace {

using test::config_of;
using test::EngineResult;
using test::EngineRun;
using test::one_stage;
using test::run_engines;
using test::Spread;

class ReplicaSteps : public testing::Test {
 protected:
  void with_engines(const Spread& spread, const std::function<void(const Job&, Engine&)>& body) {
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
      body(job, engine);
      engine.drain();
      control.barrier();
    });
  }
  test::EmulatorSettings settings_;
};

const std::vector<Spread>& spreads() {
  static const std::vector<Spread> list = {
      {.pipeline = 1, .replicas = 2},
      {.schedule = "zb-h1", .pipeline = 2, .replicas = 2, .zero = 1},
      {.schedule = "zb-v", .pipeline = 2, .replicas = 3, .zero = 1, .precision = Precision::bf16},
      {.schedule = "v-half", .pipeline = 4, .microbatches = 5},
      {.schedule = "dualpipe", .pipeline = 2},
      {.schedule = "chimera", .pipeline = 4, .replicas = 2, .zero = 1},
      {.schedule = "dualpipe-v", .pipeline = 2, .microbatches = 6, .precision = Precision::bf16},
  };
  return list;
}

// Fault 31: one buffer too many.
TEST_F(ReplicaSteps, HighWaterMarkIsThePrintedBudget) {
  for (const Spread& spread : spreads()) {
    with_engines(spread, [](const Job& job, Engine&) {
      EXPECT_EQ(emulator::counters(job.grid.rank).high_water, job.budget.allocated());
    });
  }
}

// A second workspace, of F alone, where F runs beside a backward, and nowhere else.
TEST_F(ReplicaSteps, OnlyPairsNeedASecondWorkspace) {
  for (const char* name : {"dualpipe-v", "dualpipe", "zb-v"}) {
    const Spread spread = {.schedule = name, .pipeline = 2};
    for (int rank = 0; rank < spread.pipeline; ++rank) {
      const Job job = make_job(config_of(spread), spread.ranks(), rank);
      const auto bytes = [&](WorkspaceUse use) {
        return workspace_bytes(job.request.model, job.request.shape, job.request.precision,
                               held_stages(job.request, job.lowered.placement, rank),
                               job.request.slots, use);
      };
      const bool pairs = std::string(name) != "zb-v";
      EXPECT_EQ(job.lowered.has_pairs(rank), pairs) << name;
      EXPECT_EQ(job.budget.workspace,
                bytes(WorkspaceUse::everything) + (pairs ? bytes(WorkspaceUse::forward) : 0))
          << name;
      EXPECT_LT(bytes(WorkspaceUse::forward), bytes(WorkspaceUse::everything)) << name;
    }
  }
}

TEST_F(ReplicaSteps, SubmittingAStepNeitherAllocatesNorWaits) {
  for (const Spread& spread : spreads()) {
    with_engines(spread, [](const Job& job, Engine& engine) {
      emulator::reset_counters(job.grid.rank);
      engine.submit(2, {.learning_rate = 1e-3});
      const emulator::Counters counters = emulator::counters(job.grid.rank);
      EXPECT_EQ(counters.allocations, 0);
      EXPECT_EQ(counters.synchronisations, 0);
      engine.wait(2);
    });
  }
}

// One shard each: moments, and in bf16 the fp32 masters.
TEST_F(ReplicaSteps, ZeroOneKeepsAShardOfTheState) {
  const auto budget = [](Spread spread, int zero) {
    spread.zero = zero;
    TrainConfig config = config_of(spread);
    config.init = "";
    config.model = "gpt2-124m";
    return make_job(config, spread.ranks(), 0).budget;
  };
  for (const int replicas : {2, 4, 8}) {
    const auto copies = size_t(replicas);
    const Spread bf16 = {.pipeline = 2, .replicas = replicas, .precision = Precision::bf16};
    const Budget whole = budget(bf16, 0);
    const Budget shard = budget(bf16, 1);
    EXPECT_EQ(shard.optimizer, whole.optimizer / copies);
    const size_t masters = whole.weights - shard.weights;  // what the other copies keep
    EXPECT_NEAR(double(masters),
                double(whole.weights) * 2 / 3 * double(copies - 1) / double(copies),
                1e-3 * double(masters));
    const Spread mirrored = {.schedule = "chimera", .pipeline = 2, .replicas = replicas};
    EXPECT_EQ(budget(mirrored, 1).optimizer, budget(mirrored, 0).optimizer / (2 * copies));
  }
}

// Fault 19: the reduction of a stage fires at the wrong micro-batch, or misses a stage. Fault 20: a
// deferred weight gradient runs after it.
TEST_F(ReplicaSteps, EveryStageIsReducedOnceAfterItsLastWeightGradient) {
  using schedule::Kind;
  for (const std::string& name : schedule::schedule_names()) {
    const schedule::Schedule made = schedule::generate({name, 4, 8});
    if (made.update != schedule::Update::step) {
      continue;
    }
    SCOPED_TRACE(name);
    const schedule::LoweredSchedule lowered = lower(made);
    for (size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
      std::map<int, int> open;  // weight gradients that are still to come
      std::multiset<int> reduced;
      for (const schedule::LoweredAction& entry : lowered.ranks[rank]) {
        open[entry.action.stage] += entry.action.kind == Kind::forward;
        const bool weights =
            entry.action.kind == Kind::backward || entry.action.kind == Kind::backward_weight;
        open[entry.action.stage] -= weights;
        if (weights) {
          EXPECT_EQ(reduced.count(entry.action.stage), 0u) << to_string(entry.action);
        }
        if (entry.action.kind == Kind::reduce_gradients) {
          EXPECT_EQ(open[entry.action.stage], 0) << to_string(entry.action);
          reduced.insert(entry.action.stage);
        }
        if (entry.action.kind == Kind::optimizer_step) {
          for (int stage = 0; stage < lowered.placement.stages(); ++stage) {
            const bool held = lowered.placement.holds(int(rank), stage);
            EXPECT_EQ(reduced.count(stage), held ? 1u : 0u) << "stage " << stage;
          }
        }
      }
    }
  }
}

// A slow sum over replicas holds up the optimizer, not the backward passes of other stages.
TEST_F(ReplicaSteps, SumsRunBesideTheRestOfTheBackward) {
  constexpr double latency_ms = 300;
  const Spread spread = {
      .schedule = "looped-bfs", .pipeline = 1, .chunks = 2, .microbatches = 2, .replicas = 2};
  EngineRun run{config_of(spread), spread.ranks(), 2};
  run.before = [&](int64_t step, const Job& job, Engine&) {
    if (step == 1 && job.grid.rank == 0) {
      emulator::Settings settings = emulator::settings();
      settings.link_latency_us = 1000 * latency_ms;
      emulator::set_settings(settings);
    }
  };
  run.after = [&](int64_t step, const Job& job, Engine& engine) {
    if (step == 1) {
      const RankTrace trace = engine.trace(step);
      EXPECT_GT(trace.end_of_step - trace.compute_end(), latency_ms) << "rank " << job.grid.rank;
      for (size_t i = 1; i < trace.compute.size(); ++i) {
        EXPECT_LT(trace.compute[i].start - trace.compute[i - 1].end, latency_ms / 2)
            << to_string(trace.compute[i].action);
      }
    }
  };
  run_engines(run);
}

// With one stage the only waits are those around the reduction: it waits for the weight gradients
// (fault 20), the optimizer waits for it. Without either a run has wrong bits.
TEST_F(ReplicaSteps, TheRunFailsWithoutTheWaitsAroundTheReduction) {
  constexpr int waits = 2;
  [[maybe_unused]] constexpr uint64_t most_seeds = 40;
  const Spread spread = {.microbatches = 2, .replicas = 2};
  const EngineResult reference = run_engines(spread);
  const auto run_without = [&](int64_t wait, uint64_t seed) {
    EngineRun run{config_of(spread), spread.ranks(), 2};
    run.before = [&](int64_t step, const Job& job, Engine&) {
      if (job.grid.rank != 0) {
        return;
      }
      settings_.disturb(seed);
      emulator::Settings settings = emulator::settings();
      settings.one_at_a_time = false;
      settings.max_delay_us = 200;
      settings.drop_wait = step == 1 ? wait : -1;
      emulator::set_settings(settings);
      emulator::reset_counters(0);
    };
    run.after = [&](int64_t step, const Job& job, Engine&) {
      if (wait < 0 && step == 1 && job.grid.rank == 0) {
        EXPECT_EQ(emulator::counters(0).waits, waits);
      }
    };
    return run_engines(run);
  };
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const EngineResult result = run_without(-1, seed);
    EXPECT_EQ(result.norms()[1], reference.norms()[1]);
    EXPECT_TRUE(result.weights[2] == reference.weights[2]);
  }
  const auto fails_without = [&](int64_t wait) {
#ifdef __SANITIZE_THREAD__
    // A child process runs without the wait; ThreadSanitizer makes it end with an error.
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    bool failed = false;
    EXPECT_EXIT(
        {
          run_without(wait, 1);
          std::exit(0);
        },
        [&](int status) {
          failed = status != 0;
          return true;
        },
        "");
    return failed;
#else
    for (uint64_t seed = 1; seed <= most_seeds; ++seed) {
      testing::TestPartResultArray differences;  // of the two replicas, which are expected here
      const testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &differences);
      const EngineResult result = run_without(wait, seed);
      if (differences.size() > 0 || result.norms()[1] != reference.norms()[1] ||
          result.weights[2] != reference.weights[2]) {
        return true;
      }
    }
    return false;
#endif
  };
  for (int64_t wait = 0; wait < waits; ++wait) {
    EXPECT_TRUE(fails_without(wait)) << "wait " << wait << " is not needed";
  }
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
