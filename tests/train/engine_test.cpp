#ifdef PIPETRAIN_HOST

#include "pipetrain/train/engine.h"

#include <emulator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "pipetrain/device/info.h"
#include "pipetrain/error.h"
#include "support/rank_threads.h"
#include "train/training.h"

namespace pipetrain {
namespace {

struct Spread {
  std::string schedule;
  int ranks = 1;
  int chunks = 0;
  int microbatches = 8;
};

std::string name_of(const Spread& spread) {
  return fmt::format("{} p={} v={} m={}", spread.schedule, spread.ranks, spread.chunks,
                     spread.microbatches);
}

TrainConfig config_of(const Spread& spread, Precision precision = Precision::fp32) {
  TrainConfig config = test::fixture_config();
  config.schedule = spread.schedule;
  config.microbatches = spread.microbatches;
  config.precision = precision;
  if (spread.chunks > 0) {
    config.chunks = spread.chunks;
  }
  return config;
}

// Runs `body` on every rank with an engine that has its weights.
void with_engines(const Spread& spread, Precision precision,
                  const std::function<void(const Job&, Engine&)>& body) {
  test::run_ranks(spread.ranks, [&](Control& control) {
    SCOPED_TRACE(name_of(spread));
    emulator::reset_counters(control.rank());
    const Job job = make_job(config_of(spread, precision), spread.ranks, control.rank());
    Engine engine(job, control, nullptr);
    engine.set_initial_weights();
    body(job, engine);
    engine.drain();
    control.barrier();
  });
}

void run_steps(Engine& engine, int64_t first, int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    engine.submit(step, {.learning_rate = 1e-3});
    engine.wait(step);
  }
}

const std::vector<Spread>& spreads() {
  static const std::vector<Spread> list = {
      {"gpipe", 4},      {"1f1b", 1},           {"1f1b", 4},           {"1f1b", 4, 0, 2},
      {"1f1b", 3, 0, 7}, {"interleaved", 2, 2}, {"interleaved", 4, 2}, {"interleaved", 2, 4, 3},
  };
  return list;
}

// Fault 31: one buffer too many, or receive buffers for all micro-batches.
TEST(EngineMemory, HighWaterMarkIsThePrintedBudget) {
  for (const Spread& spread : spreads()) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      with_engines(spread, precision, [](const Job& job, Engine& engine) {
        run_steps(engine, 0, 2);
        EXPECT_EQ(emulator::counters(job.grid.rank).high_water, job.budget.allocated());
      });
    }
  }
}

// Fault 34: memory grows from step to step.
TEST(EngineMemory, LaterStepsTakeNoMoreThanTheFirst) {
  with_engines({"1f1b", 2}, Precision::fp32, [](const Job& job, Engine& engine) {
    run_steps(engine, 0, 1);
    const size_t first = emulator::counters(job.grid.rank).high_water;
    run_steps(engine, 1, 6);
    EXPECT_EQ(emulator::counters(job.grid.rank).high_water, first);
  });
}

size_t bytes_of(const std::vector<LayoutRow>& rows) {
  size_t bytes = 0;
  for (const LayoutRow& row : rows) {
    bytes += row.bytes * size_t(row.count);
  }
  return bytes;
}

// Peak activations in bytes that were really written = the cap = the schedule's formula times the
// bytes of a slot.
TEST(EngineMemory, TouchedActivationBytesAreTheSchedulesPeak) {
  for (const Spread& spread : spreads()) {
    with_engines(spread, Precision::bf16, [&](const Job& job, Engine& engine) {
      run_steps(engine, 0, 2);
      const Pool& pool = engine.activations();
      const int p = spread.ranks;
      const int m = spread.microbatches;
      const int r = job.grid.pipeline_rank();
      const int v = std::max(spread.chunks, 1);
      const int formula = spread.schedule == "gpipe" ? m
                          : spread.schedule == "1f1b"
                              ? std::min(m, p - r)
                              : std::min(m * v, 2 * (p - 1 - r) + (v - 1) * std::min(p, m) + 1);
      EXPECT_EQ(pool.slots(), formula) << "rank " << r;
      EXPECT_EQ(pool.touched_slots(), formula) << "rank " << r;
      if (v == 1) {
        const StageLayers& stage = job.request.stages[size_t(r)];
        const size_t written = bytes_of(activation_layout(
            job.request.model, job.request.shape, job.request.precision, stage, job.request.slots));
        emulator::poison(pool.data(), size_t(pool.slots()) * pool.slot_bytes());
        run_steps(engine, 2, 3);
        EXPECT_EQ(emulator::touched_bytes(pool.data(), size_t(pool.slots()) * pool.slot_bytes()),
                  size_t(formula) * written)
            << "rank " << r;
      }
    });
  }
}

TEST(EngineMemory, OneF1bsPeakDoesNotGrowWithMicrobatchesAndGpipesDoes) {
  const auto slots = [](const std::string& schedule, int microbatches) {
    TrainConfig config = config_of({schedule, 4, 0, microbatches});
    config.microbatch_size = 1;
    const Job job = make_job(config, 4, 0);
    return job.budget.activation_slots;
  };
  EXPECT_EQ(slots("1f1b", 8), slots("1f1b", 128));
  EXPECT_EQ(slots("gpipe", 128), 16 * slots("gpipe", 8));
}

// Nothing allocates or waits for the device while a step is submitted.
TEST(EngineSteps, SubmittingAStepNeitherAllocatesNorWaits) {
  with_engines({"1f1b", 2}, Precision::bf16, [](const Job& job, Engine& engine) {
    run_steps(engine, 0, 2);
    emulator::reset_counters(job.grid.rank);
    engine.submit(2, {.learning_rate = 1e-3});
    const emulator::Counters counters = emulator::counters(job.grid.rank);
    EXPECT_EQ(counters.allocations, 0);
    EXPECT_EQ(counters.synchronisations, 0);
    engine.wait(2);
  });
}

// Fault 29: the schedule that is shown differs from the one that runs.
TEST(EngineSteps, WhatIsPlannedIsWhatRuns) {
  for (const Spread& spread : spreads()) {
    with_engines(spread, Precision::fp32, [](const Job& job, Engine& engine) {
      run_steps(engine, 0, 2);
      const RankTrace trace = engine.trace(1);
      const auto& planned = job.planned.ranks[size_t(job.grid.pipeline_rank())].intervals;
      ASSERT_EQ(trace.compute.size(), planned.size());
      for (size_t i = 0; i < planned.size(); ++i) {
        EXPECT_EQ(trace.compute[i].action, planned[i].action);
        EXPECT_GE(trace.compute[i].end, trace.compute[i].start);
        EXPECT_TRUE(i == 0 || trace.compute[i].start >= trace.compute[i - 1].end);
      }
    });
  }
}

// Fault 4: connections that are made at first use, in the first step, hang. Here every rank but one
// waits until that one has submitted the whole step: it would wait for them if it still connected.
// The step is short enough for the queue of a stream.
TEST(EngineSteps, NothingConnectsInTheFirstStep) {
  test::run_ranks(4, [](Control& control) {
    TrainConfig config = config_of({"interleaved", 4, 2, 4});
    config.microbatch_size = 4;
    const Job job = make_job(config, 4, control.rank());
    Engine engine(job, control, nullptr);
    engine.set_initial_weights();
    for (int turn = 0; turn < 4; ++turn) {
      control.barrier();
      if (turn == control.rank()) {
        engine.submit(0, {.learning_rate = 1e-3});
      }
    }
    EXPECT_NEAR(engine.wait(0).loss, 5.671987289630866, 1e-5 * 5.7);
    engine.drain();
    control.barrier();
  });
}

// Fault 13: two engines in one process, one after the other and at once.
TEST(EngineSteps, TwoEnginesAtOnceDoNotDisturbEachOther) {
  std::vector<double> losses(2);
  const auto train_one = [&](Control& control, int device, size_t which) {
    select_device(device);
    const Job job = make_job(config_of({"1f1b", 2}), 2, control.rank());
    Engine engine(job, control, nullptr);
    engine.set_initial_weights();
    double loss = 0;
    for (int64_t step = 0; step < 3; ++step) {
      engine.submit(step, {.learning_rate = 1e-3});
      loss = engine.wait(step).loss;
    }
    engine.drain();
    control.barrier();
    if (control.rank() == 0) {
      losses[which] = loss;
    }
  };
  std::vector<std::thread> jobs;
  for (size_t which = 0; which < 2; ++which) {
    jobs.emplace_back([&, which] {
      test::run_ranks(
          2, [&](Control& control) { train_one(control, int(2 * which) + control.rank(), which); });
    });
  }
  for (std::thread& job : jobs) {
    job.join();
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_NEAR(losses[0], 5.572937813494367, 1e-5 * 5.6);  // the oracle's third step
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
