#ifdef PIPETRAIN_HOST

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "pipetrain/error.h"
#include "pipetrain/schedule/generate.h"
#include "support/rank_threads.h"
#include "train/engine_run.h"

// --recompute and --defer: other memory, the same bits.

namespace pipetrain {
namespace {

using test::config_of;
using test::EngineResult;
using test::EngineRun;
using test::Spread;

constexpr SlotPolicy policies[] = {
    {Recompute::none, Defer::all},      {Recompute::none, Defer::cheap},
    {Recompute::attention, Defer::all}, {Recompute::attention, Defer::cheap},
    {Recompute::full, Defer::all},      {Recompute::full, Defer::cheap},
};

std::string text(const Spread& spread, const SlotPolicy& policy) {
  return to_string(spread) + " recompute " + to_string(policy.recompute) + " defer " +
         to_string(policy.defer);
}

TrainConfig config_with(const Spread& spread, const SlotPolicy& policy) {
  TrainConfig config = config_of(spread);
  config.slots = policy;
  return config;
}

EngineResult run(const Spread& spread, const SlotPolicy& policy) {
  return test::run_engines(EngineRun{config_with(spread, policy), spread.ranks(), 2});
}

class RecomputeSteps : public testing::Test {
 protected:
  test::EmulatorSettings settings_;
};

TEST_F(RecomputeSteps, HaveTheBitsOfKeepingEverything) {
  const struct {
    Spread spread;
    SlotPolicy policy;
  } cases[] = {
      {{.pipeline = 4}, {Recompute::attention, Defer::all}},
      {{.schedule = "gpipe", .pipeline = 2}, {Recompute::full, Defer::all}},
      {{.schedule = "interleaved", .pipeline = 2, .chunks = 2}, {Recompute::full, Defer::cheap}},
      {{.schedule = "zb-h1", .pipeline = 4}, {Recompute::full, Defer::all}},
      {{.schedule = "zb-h1", .pipeline = 2, .replicas = 2, .zero = 1},
       {Recompute::attention, Defer::cheap}},
      {{.schedule = "zb-v", .pipeline = 2}, {Recompute::none, Defer::cheap}},
      {{.schedule = "v-half", .pipeline = 2, .precision = Precision::bf16},
       {Recompute::full, Defer::cheap}},
      {{.schedule = "zb-h2", .pipeline = 2, .precision = Precision::fp64},
       {Recompute::attention, Defer::all}},
      {{.schedule = "dualpipe", .pipeline = 2}, {Recompute::full, Defer::cheap}},
      {{.schedule = "chimera", .pipeline = 2}, {Recompute::attention, Defer::all}},
  };
  uint64_t seed = 1;
  for (const auto& [spread, policy] : cases) {
    SCOPED_TRACE(text(spread, policy));
    settings_.disturb(seed++);
    test::expect_same_bits(run(spread, policy), run(spread, {}));
  }
}

size_t bytes_of(const std::vector<LayoutRow>& rows) {
  size_t bytes = 0;
  for (const LayoutRow& row : rows) {
    bytes += row.bytes * size_t(row.count);
  }
  return bytes;
}

// Every slot of the pool is written to the last byte of its layout, and nothing else is.
void expect_filled(const Pool& pool, const std::vector<LayoutRow>& rows) {
  EXPECT_EQ(emulator::touched_bytes(pool.data(), size_t(pool.slots()) * pool.slot_bytes()),
            size_t(pool.slots()) * bytes_of(rows));
}

// Runs `body` on every rank with an engine that has done two steps in slots that were poisoned.
void with_engines(const TrainConfig& config, int ranks,
                  const std::function<void(const Job&, const Engine&)>& body) {
  test::run_ranks(ranks, [&](Control& control) {
    SCOPED_TRACE(testing::Message()
                 << config.schedule << " " << to_string(config.precision) << " recompute "
                 << to_string(config.slots.recompute) << " defer " << to_string(config.slots.defer)
                 << " layers " << testing::PrintToString(config.layers_per_stage));
    emulator::reset_counters(control.rank());
    const Job job = make_job(config, ranks, control.rank());
    Engine engine(job, control, nullptr);
    engine.set_initial_weights();
    for (const Pool* pool : {&engine.activations(), &engine.gradient_slots()}) {
      emulator::poison(pool->data(), size_t(pool->slots()) * pool->slot_bytes());
    }
    for (int64_t step = 0; step < 2; ++step) {
      engine.submit(step, {.learning_rate = 1e-3});
      engine.wait(step);
    }
    body(job, engine);
    engine.drain();
    control.barrier();
  });
}

// Fault 33: a split backward keeps the whole graph. What a pending W needs lies in its two slots,
// which are free again after it: the pools are the schedule's peaks, filled, and nothing else is
// allocated.
TEST_F(RecomputeSteps, PoolsAreTheSchedulesPeaksAndFilled) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const Spread spread = {
        .schedule = schedule, .pipeline = 4, .microbatches = 6, .precision = Precision::bf16};
    for (const SlotPolicy& policy : policies) {
      with_engines(
          config_with(spread, policy), spread.ranks(), [&](const Job& job, const Engine& engine) {
            const int rank = job.grid.pipeline_rank();
            const bool split = spread.schedule == "zb-h1";
            EXPECT_EQ(engine.activations().slots(), split ? 4 : 4 - rank);
            const BudgetRequest& request = job.request;
            const StageLayers& stage = request.stages[size_t(rank)];
            const std::vector<LayoutRow> gradients =
                gradient_layout(request.model, request.shape, request.precision, stage, policy);
            EXPECT_EQ(engine.gradient_slots().slots(),
                      split && bytes_of(gradients) > 0 ? rank + 1 : 0);
            expect_filled(
                engine.activations(),
                activation_layout(request.model, request.shape, request.precision, stage, policy));
            expect_filled(engine.gradient_slots(), gradients);
          });
    }
  }
}

// A stage without layers leaves nothing to its W and takes no gradient slot.
TEST_F(RecomputeSteps, EverySlotIsWrittenWhereStagesHaveNoLayers) {
  for (const std::vector<int>& layers :
       {std::vector{2, 2, 2, 1, 1, 0, 0, 0}, {0, 1, 2, 2, 2, 1, 0, 0}, {1, 0, 2, 0, 2, 0, 3, 0}}) {
    for (const SlotPolicy& policy : policies) {
      TrainConfig config = config_with(
          {.schedule = "v-half", .pipeline = 4, .microbatches = 5, .precision = Precision::bf16},
          policy);
      config.layers_per_stage = layers;
      with_engines(config, 4, [](const Job&, const Engine& engine) {
        for (const Pool* pool : {&engine.activations(), &engine.gradient_slots()}) {
          for (int slot = 0; slot < pool->slots(); ++slot) {
            EXPECT_GT(emulator::touched_bytes(pool->data() + size_t(slot) * pool->slot_bytes(),
                                              pool->slot_bytes()),
                      0u)
                << "slot " << slot << " of " << pool->slots();
          }
        }
      });
    }
  }
}

TEST_F(RecomputeSteps, PeakMemoryIsThePredictedOneInBytes) {
  for (const Spread& spread : {Spread{.pipeline = 3},
                               {.schedule = "zb-h1", .pipeline = 2, .precision = Precision::bf16},
                               {.schedule = "zb-v", .pipeline = 2, .precision = Precision::bf16},
                               {.schedule = "v-half", .pipeline = 4, .microbatches = 5},
                               {.schedule = "dualpipe", .pipeline = 2},
                               {.schedule = "dualpipe-v", .pipeline = 2}}) {
    for (const SlotPolicy& policy : policies) {
      with_engines(config_with(spread, policy), spread.ranks(), [](const Job& job, const Engine&) {
        EXPECT_EQ(emulator::counters(job.grid.rank).high_water, job.budget.allocated());
      });
    }
  }
}

// In bytes of gpt2-124m, one layer per stage, with the log-sum-exp.
TEST_F(RecomputeSteps, CheapDeferringMakesZbH1AsSmallAs1f1b) {
  const auto peak = [](const std::string& schedule, Defer defer) {
    TrainConfig config = config_with({.schedule = schedule, .pipeline = 4, .microbatches = 8},
                                     {Recompute::none, defer});
    config.init = "";
    config.model = "gpt2-124m";
    config.layers_per_stage = {3, 3, 3, 3};
    size_t most = 0;
    for (int rank = 0; rank < 3; ++rank) {  // the last rank keeps a hidden gradient too
      const Budget budget = make_job(config, 4, rank).budget;
      most = std::max(most, budget.activation_slots + budget.gradient_slots);
    }
    return most;
  };
  EXPECT_EQ(peak("zb-h1", Defer::cheap), peak("1f1b", Defer::all));
  EXPECT_GT(double(peak("zb-h1", Defer::all)), 1.4 * double(peak("1f1b", Defer::all)));
}

// ---- the full product

// nullopt: the schedule refuses it, with the error of a user's mistake.
std::optional<EngineResult> run_unless_refused(const Spread& spread, const SlotPolicy& policy) {
  try {
    make_job(config_with(spread, policy), spread.ranks(), 0);
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return run(spread, policy);
}

class SweepRecompute : public testing::TestWithParam<std::string> {
 protected:
  test::EmulatorSettings settings_;
};

TEST_P(SweepRecompute, HasTheBitsOfKeepingEverything) {
  uint64_t seed = 1;
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const int pipeline : {1, 2, 4}) {
      for (const int chunks : {1, 2, 4}) {
        for (const int microbatches : {1, 4, 6}) {
          Spread spread = {GetParam(), pipeline, chunks, microbatches, 1, 0, precision};
          std::optional<EngineResult> kept;
          for (const SlotPolicy& policy : policies) {
            SCOPED_TRACE(text(spread, policy));
            settings_.disturb(seed++);
            const std::optional<EngineResult> result = run_unless_refused(spread, policy);
            if (!result) {
              break;
            }
            if (!kept) {
              kept = result;
            }
            test::expect_same_bits(*result, *kept);
          }
        }
      }
    }
  }
}

std::vector<std::string> synchronous_schedules() {
  std::vector<std::string> names = schedule::schedule_names();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("pipedream"); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(, SweepRecompute, testing::ValuesIn(synchronous_schedules()),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
