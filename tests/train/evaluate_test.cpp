#ifdef PIPETRAIN_HOST

#include "pipetrain/train/evaluate.h"

#include <emulator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "support/rank_threads.h"
#include "train/engine_run.h"
#include "train/temporary.h"
#include "train/training.h"

// Evaluation as a program runs it: of a checkpoint without training, and inside a training run.

namespace pipetrain {
namespace {

using test::run_ranks;
using test::Training;

TrainConfig fixture_evaluation() {
  TrainConfig config = test::fixture_config();
  config.validation_batches = 8;
  return config;
}

EvaluationReport evaluate_on_threads(const TrainConfig& config, int ranks) {
  std::vector<std::optional<EvaluationReport>> reports(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Control& control) {
    emulator::reset_counters(control.rank());
    EvaluationReport report = evaluate(config, control, "CHECKPOINT");
    EXPECT_EQ(emulator::counters(control.rank()).high_water, report.budget.allocated());
    EXPECT_EQ(report.budget.gradients + report.budget.optimizer + report.budget.gradient_slots, 0u);
    reports[size_t(control.rank())] = std::move(report);
  });
  for (const auto& report : reports) {
    EXPECT_EQ(report->result.loss, reports[0]->result.loss);
  }
  return *reports[0];
}

class Evaluate : public testing::Test {
 protected:
  test::EmulatorSettings settings_;
};

// Fault 8: all stages take part, and the loss is known where rank 0 does not have the head. Without
// gradients and moments, in the budget that it names.
TEST_F(Evaluate, ACheckpointHasTheLossOfItsFirstStepOnEverySpread) {
  const double oracle = 5.671987289630866;
  const EvaluationReport one = evaluate_on_threads(fixture_evaluation(), 1);
  EXPECT_NEAR(one.result.loss, oracle, 1e-5 * oracle);
  EXPECT_EQ(one.result.targets, 8u * 2 * 32);
  EXPECT_EQ(one.microbatches, 8u);
  EXPECT_DOUBLE_EQ(one.result.perplexity(), std::exp(one.result.loss));
  uint64_t seed = 1;
  for (const auto& [schedule, ranks, replicas] :
       {std::tuple("gpipe", 2, 1), std::tuple("interleaved", 4, 1), std::tuple("1f1b", 8, 1),
        std::tuple("zb-v", 2, 1), std::tuple("dualpipe", 4, 2), std::tuple("pipedream", 3, 1)}) {
    SCOPED_TRACE(fmt::format("{} {} {}", schedule, ranks, replicas));
    settings_.disturb(seed++);
    TrainConfig config = fixture_evaluation();
    config.schedule = schedule;
    config.data_parallel = replicas;
    config.microbatches = int(seed % 4) + 1;
    EXPECT_EQ(evaluate_on_threads(config, ranks).result.loss, one.result.loss);
  }
}

// In bf16 the weights in use are the exported masters rounded once.
TEST_F(Evaluate, AnExportHasTheLastValidationLossOfItsRun) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const TemporaryDirectory directory;
    TrainConfig config = test::fixture_config();
    config.steps = 2;
    config.precision = precision;
    config.validation = config.data;
    config.validation_batches = 3;
    config.export_dir = directory.file("model");
    std::filesystem::create_directory(config.export_dir);
    double last = 0;
    run_ranks(2, [&](Control& control) {
      const TrainReport report = train(config, control);
      if (control.rank() == 0) {
        last = report.validations.back().result.loss;
      }
    });
    TrainConfig evaluation = fixture_evaluation();
    evaluation.init = config.export_dir;
    evaluation.precision = precision;
    evaluation.validation_batches = 3;
    EXPECT_EQ(evaluate_on_threads(evaluation, 1).result.loss, last) << to_string(precision);
  }
}

TEST_F(Evaluate, WrongInputNamesTheFlag) {
  const auto refusal = [](const TrainConfig& config, ExitCode code = ExitCode::usage) {
    std::string message;
    run_ranks(1, [&](Control& control) {
      try {
        evaluate(config, control, "CHECKPOINT");
        ADD_FAILURE() << "nothing was refused";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code);
        message = error.what();
      }
    });
    return message;
  };
  TrainConfig config = fixture_evaluation();
  config.init = "absent";
  EXPECT_PRED2(contains, refusal(config), "CHECKPOINT absent");
  config = fixture_evaluation();
  config.microbatch_size = 1 << 20;
  for (const char* part : {"--data", "tokens are available", "needs 33554433"}) {
    EXPECT_PRED2(contains, refusal(config), part);
  }
  config = fixture_evaluation();
  config.schedule = "none";
  EXPECT_PRED2(contains, refusal(config), "--schedule");
  config = fixture_evaluation();
  config.memory_limit = 1e-6;
  EXPECT_PRED2(contains, refusal(config, ExitCode::does_not_fit), "--memory-limit");
}

// Fault 7: train, evaluate, train gives another result than training.
TEST_F(Evaluate, ARunWithValidationHasTheLossesGradientsAndWeightsOfOneWithout) {
  TrainConfig config = test::fixture_config();
  config.steps = 5;
  config.schedule = "zb-v";
  const Training without = test::train_on_threads(config, 2);
  config.validation = config.data;
  config.validation_every = 2;
  config.validation_batches = 3;
  settings_.disturb(2);
  const Training with = test::train_on_threads(config, 2);
  EXPECT_EQ(with.losses(), without.losses());
  EXPECT_EQ(with.norms(), without.norms());
  EXPECT_TRUE(with.gradients == without.gradients);
  EXPECT_TRUE(with.weights == without.weights);

  for (const TrainReport& report : with.reports) {
    std::vector<int64_t> steps;
    for (const Validation& validation : report.validations) {
      steps.push_back(validation.steps);
      EXPECT_EQ(validation.result.targets, 3u * 2 * 32);
    }
    EXPECT_EQ(steps, (std::vector<int64_t>{0, 2, 4, 5}));
  }
  const std::vector<Validation>& validations = with.reports[0].validations;
  EXPECT_FALSE(with.steps[0].validation_loss);
  EXPECT_EQ(with.steps[1].validation_loss, validations[1].result.loss);
  EXPECT_FALSE(with.steps[2].validation_loss);
  EXPECT_EQ(with.steps[3].validation_loss, validations[2].result.loss);
  EXPECT_EQ(with.steps[4].validation_loss, validations[3].result.loss);
}

// The time of a step is its own, not that of the evaluation before or after it.
TEST_F(Evaluate, StepTimesDoNotHoldTheEvaluation) {
  TrainConfig config = test::fixture_config();
  config.steps = 3;
  config.microbatches = 1;
  config.microbatch_size = 1;
  config.validation = config.data;
  config.validation_every = 1;
  config.validation_batches = 60;
  const Training training = test::train_on_threads(config, 1);
  for (const StepMetrics& step : training.steps) {
    const double evaluation = training.reports[0].validations[size_t(step.step)].result.seconds;
    EXPECT_LT(step.step_seconds, evaluation / 2) << "step " << step.step;
  }
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
