#ifdef PIPETRAIN_HOST

#include "pipetrain/train/job.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "train/engine_run.h"
#include "train/temporary.h"

// What a job takes from a schedule's file, and what it refuses.

namespace pipetrain {
namespace {

using test::config_of;
using test::EngineRun;
using test::one_stage;
using test::run_engines;
using test::Spread;

class JobSchedule : public testing::Test {
 protected:
  // --schedule csv:FILE with this text.
  TrainConfig config_with(const std::string& text, const Spread& spread) {
    TrainConfig config = config_of(spread);
    write_file(directory_.file("schedule.csv"), text);
    config.schedule = "csv:" + directory_.file("schedule.csv");
    return config;
  }
  static std::string csv_of(const Spread& spread) {
    return to_csv(schedule::generate({.name = spread.schedule,
                                      .ranks = spread.pipeline,
                                      .microbatches = spread.microbatches,
                                      .chunks = spread.chunks}));
  }
  static std::string refusal(const TrainConfig& config, int ranks) {
    try {
      make_job(config, ranks, 0);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was refused";
  }
  static void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << '"' << part << "\" is not in: " << text;
    }
  }

  TemporaryDirectory directory_;
  test::EmulatorSettings settings_;
};

TEST_F(JobSchedule, AFileIsTrainedLikeTheScheduleItWasWrittenFrom) {
  for (const Spread& spread : {Spread{.schedule = "1f1b", .pipeline = 2, .replicas = 2},
                               {.schedule = "interleaved", .pipeline = 2, .chunks = 2},
                               {.schedule = "zb-v", .pipeline = 2},
                               {.schedule = "dualpipe-v", .pipeline = 2, .microbatches = 5}}) {
    SCOPED_TRACE(to_string(spread));
    TrainConfig config = config_with(csv_of(spread), spread);
    config.chunks.reset();
    test::expect_same_bits(run_engines(EngineRun{config, spread.ranks()}), one_stage(spread));
  }
  const Spread chimera = {.schedule = "chimera", .pipeline = 4, .microbatches = 8};
  test::expect_same_bits(
      run_engines(EngineRun{config_with(csv_of(chimera), chimera), chimera.ranks()}),
      run_engines(chimera));
}

// F beside the backward of the same chunk, which also embeds and has the head.
TEST_F(JobSchedule, PairsOfOneChunkHaveTheBitsOfOneStage) {
  uint64_t seed = 1;
  for (const char* text :
       {"0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,(0F3;0B2)OVERLAP_F_B,0B3\n",
        "0F0,(0F1;0I0)OVERLAP_F_B,(0F2;0I1)OVERLAP_F_B,0W0,0W1,(0F3;0B2)OVERLAP_F_B,0B3\n"}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const Spread spread = {.precision = precision};
      settings_.disturb(seed++);
      test::expect_same_bits(run_engines(EngineRun{config_with(text, spread), 1}),
                             one_stage(spread));
    }
  }
}

// Weight gradients that do not ascend give other bits: the run warns and is near all others.
TEST_F(JobSchedule, WeightGradientsOutOfOrderAreRunWithAWarning) {
  const std::string text = "0F0,0F1,0I0,0I1,0W1,0W0\n";
  const TrainConfig config = config_with(text, {.microbatches = 2});
  const Job job = make_job(config, 1, 0);
  ASSERT_EQ(job.warnings.size(), 1u);
  expect_contains(job.warnings.front(), {"csv:", "rank 0", "0W0", "do not ascend"});
  test::expect_near(run_engines(EngineRun{config, 1}), one_stage({.microbatches = 2}), 1e-6);
  EXPECT_TRUE(make_job(config_with("0F0,0F1,0I0,0I1,0W0,0W1\n", {.microbatches = 2}), 1, 0)
                  .warnings.empty());
}

TEST_F(JobSchedule, AFileThatDoesNotFitTheJobIsRefused) {
  const Spread spread = {.pipeline = 2};
  const std::string text = csv_of(spread);
  expect_contains(refusal(config_with(text, spread), 3), {"--schedule csv:", "2 lines", "3"});
  Spread replicas = spread;
  replicas.replicas = 2;
  expect_contains(refusal(config_with(text, replicas), 2), {"--data-parallel 2", "start 4 ranks"});
  Spread more = spread;
  more.microbatches = 6;
  expect_contains(refusal(config_with(text, more), 2), {"--microbatches is 6", "must be 4"});
  Spread chunks = spread;
  chunks.chunks = 2;
  expect_contains(refusal(config_with(text, chunks), 2), {"--chunks is 2"});
  TrainConfig grouped = config_with(text, spread);
  grouped.group = 2;
  expect_contains(refusal(grouped, 2), {"--group 2"});
  expect_contains(refusal(config_with("0F0,0F1,0F2,0F3\n", {}), 1), {"no backward"});
  expect_contains(
      refusal(config_with("0F0,0F1,0B0,OPTIMIZER_STEP,0B1,OPTIMIZER_STEP\n", {.microbatches = 2}),
              1),
      {"--schedule csv:", "OPTIMIZER_STEP", "--schedule pipedream"});
  expect_contains(refusal(config_with("0F0,0X0\n", {}), 1), {"--schedule csv:", "0X0"});
  TrainConfig missing = config_of({});
  missing.schedule = "csv:" + directory_.file("absent.csv");
  expect_contains(refusal(missing, 1), {"absent.csv", "cannot be read"});
}

// pipedream: the one gradient of a step and its norm do not exist.
TEST_F(JobSchedule, WhatStagesThatAreUpdatedOneByOneCannotDoIsRefused) {
  TrainConfig config = config_of({.schedule = "pipedream", .pipeline = 2});
  for (const std::optional<double> clip : {std::optional<double>(), std::optional<double>(0)}) {
    config.grad_clip = clip;
    EXPECT_EQ(make_job(config, 2, 0).config.grad_clip, 0);
  }
  config.grad_clip = 0.5;
  expect_contains(refusal(config, 2), {"--grad-clip 0.5", "--schedule pipedream", "must be 0"});
  config.grad_clip.reset();
  config.dump_gradients = directory_.file("gradients.safetensors");
  expect_contains(refusal(config, 2), {"--dump-gradients", "--schedule pipedream"});
  config.schedule = "pipedream-2bw";
  EXPECT_EQ(make_job(config, 2, 0).config.grad_clip, 1);
  config.microbatches = 1;
  expect_contains(refusal(config, 2), {"--microbatches is 1", "pipedream-2bw", "2"});
}

TEST_F(JobSchedule, RanksThatReplicasDoNotDivideAreRefused) {
  expect_contains(refusal(config_of({.replicas = 2}), 3), {"--data-parallel 2", "3 ranks"});
  TrainConfig config = config_of({});
  config.zero = 2;
  expect_contains(refusal(config, 1), {"--zero 2"});
  config.zero = 0;
  config.data_parallel = 0;
  expect_contains(refusal(config, 1), {"--data-parallel 0"});
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
