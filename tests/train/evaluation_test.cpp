#ifdef PIPETRAIN_HOST

#include "pipetrain/train/evaluation.h"

#include <emulator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "pipetrain/schedule/generate.h"
#include "support/rank_threads.h"
#include "train/device_values.h"
#include "train/engine_run.h"
#include "train/temporary.h"
#include "train/training.h"

// Forward only through the pipeline, before, between and after training steps.

namespace pipetrain {
namespace {

using test::EngineRun;
using test::run_engines;
using test::Spread;

// The spread's training, with `windows` micro-batches of its own data for validation.
TrainConfig validating(const Spread& spread, int64_t windows) {
  TrainConfig config = test::config_of(spread);
  config.validation = config.data;
  config.validation_batches = windows;
  return config;
}

EvaluationResult evaluated(Control& control, Engine& engine) {
  Log log("", Log::Terminal::off);
  return engine.evaluator()->run(control, log);
}

// The loss of initial weights, the same on all ranks; nothing is trained.
EvaluationResult evaluate_once(const TrainConfig& config, int ranks) {
  EvaluationResult result;
  std::mutex mutex;
  test::run_ranks(ranks, [&](Control& control) {
    const Job job = make_job(config, ranks, control.rank());
    Engine engine(job, control, nullptr);
    engine.set_initial_weights();
    const EvaluationResult own = evaluated(control, engine);
    control.barrier();
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(result.targets == 0 || own.loss == result.loss) << "rank " << control.rank();
    result = own;
  });
  return result;
}

double loss_of_one_rank(Precision precision, int64_t windows) {
  static std::map<std::pair<Precision, int64_t>, double> losses;
  const std::pair key(precision, windows);
  if (!losses.contains(key)) {
    losses[key] = evaluate_once(validating({.precision = precision}, windows), 1).loss;
  }
  return losses[key];
}

class Evaluating : public testing::Test {
 protected:
  test::EmulatorSettings settings_;
};

// What PyTorch computed in float64 as the loss of the first step, before it.
TEST_F(Evaluating, TheFixtureGivesTheLossOfItsFirstStep) {
  const double oracle = 5.671987289630866;
  for (const auto& [precision, tolerance] :
       {std::pair(Precision::fp32, 1e-5 * oracle), std::pair(Precision::bf16, 5e-4 * oracle),
        std::pair(Precision::fp64, 1e-12 * oracle)}) {
    TrainConfig config = test::fixture_config();
    config.precision = precision;
    config.schedule = "zb-v";
    config.validation = config.data;
    config.validation_batches = 8;
    const EvaluationResult result = evaluate_once(config, 2);
    EXPECT_NEAR(result.loss, oracle, tolerance) << to_string(precision);
    EXPECT_EQ(result.targets, 8u * 2 * 32);
  }
}

// Fault 8: an evaluation by the rank with the loss alone hangs; here all stages take part, also
// where the last one is on rank 0 (two chunks in a V). Fault 9: stages without layers too.
TEST_F(Evaluating, EverySpreadHasTheBitsOfOneRank) {
  uint64_t seed = 1;
  for (const Spread& spread :
       {Spread{.schedule = "1f1b", .pipeline = 2},
        {.schedule = "1f1b", .pipeline = 8},
        {.schedule = "gpipe", .pipeline = 4, .precision = Precision::bf16},
        {.schedule = "interleaved", .pipeline = 2, .chunks = 4},
        {.schedule = "interleaved", .pipeline = 4, .chunks = 4},
        {.schedule = "looped-bfs", .pipeline = 2, .precision = Precision::bf16},
        {.schedule = "zb-v", .pipeline = 1},
        {.schedule = "zb-v", .pipeline = 4},
        {.schedule = "v-min", .pipeline = 2, .precision = Precision::bf16},
        {.schedule = "dualpipe-v", .pipeline = 2, .replicas = 2},
        {.schedule = "dualpipe", .pipeline = 4, .microbatches = 8},
        {.schedule = "chimera", .pipeline = 2, .replicas = 2},
        {.schedule = "zb-h1", .pipeline = 2, .replicas = 3, .zero = 1},
        {.schedule = "1f1b", .pipeline = 1, .replicas = 2, .precision = Precision::bf16}}) {
    SCOPED_TRACE(to_string(spread));
    settings_.disturb(seed++);
    const EvaluationResult result = evaluate_once(validating(spread, 11), spread.ranks());
    EXPECT_EQ(result.loss, loss_of_one_rank(spread.precision, 11));
    EXPECT_EQ(result.targets, 11u * 16);
  }
}

// Fault 7: an evaluation with another number of micro-batches than training. With one, fewer than
// ranks, fewer than replicas, and more than go through the pipeline at once.
TEST_F(Evaluating, AnyNumberOfMicrobatchesInPassesOfAnySize) {
  uint64_t seed = 1;
  for (const int64_t windows : {1, 2, 3, 5, 17}) {
    for (Spread spread : {Spread{.pipeline = 4, .microbatches = 1},
                          {.schedule = "interleaved", .pipeline = 2, .microbatches = 3},
                          {.schedule = "v-half", .pipeline = 2, .microbatches = 7},
                          {.pipeline = 2, .microbatches = 2, .replicas = 2}}) {
      SCOPED_TRACE(fmt::format("{} micro-batches, {}", windows, to_string(spread)));
      settings_.disturb(seed++);
      const EvaluationResult result = evaluate_once(validating(spread, windows), spread.ranks());
      EXPECT_EQ(result.loss, loss_of_one_rank(Precision::fp32, windows));
      EXPECT_EQ(result.targets, size_t(windows) * 16);
    }
  }
}

TEST_F(Evaluating, PassesAreEvenAndFillThePipeline) {
  const auto passes = [](const Spread& spread, int64_t windows) {
    const Job job = make_job(validating(spread, windows), spread.ranks(), 0);
    return std::pair(job.evaluation->passes, job.evaluation->pass.microbatches);
  };
  EXPECT_EQ(passes({.microbatches = 4}, 4), std::pair(int64_t(1), 4));
  EXPECT_EQ(passes({.microbatches = 4}, 9), std::pair(int64_t(3), 3));
  EXPECT_EQ(passes({.microbatches = 8}, 9), std::pair(int64_t(2), 5));
  EXPECT_EQ(passes({.pipeline = 4, .microbatches = 1}, 9), std::pair(int64_t(3), 3));
  EXPECT_EQ(passes({.microbatches = 8, .replicas = 2}, 9), std::pair(int64_t(1), 5));
}

// Fault 7: an evaluation before the first step, between and after the steps touches a gradient. All
// of a step's results and the weights have the bits of a run without.
TEST_F(Evaluating, TrainingBitsAreThoseOfARunWithout) {
  uint64_t seed = 1;
  for (const Spread& spread :
       {Spread{.schedule = "1f1b", .pipeline = 2},
        {.schedule = "interleaved", .pipeline = 2, .chunks = 2, .precision = Precision::bf16},
        {.schedule = "zb-v", .pipeline = 2},
        {.schedule = "dualpipe", .pipeline = 2, .replicas = 2, .zero = 1},
        {.schedule = "zb-h2", .pipeline = 3, .microbatches = 5}}) {
    SCOPED_TRACE(to_string(spread));
    settings_.disturb(seed++);
    EngineRun run{validating(spread, 3), spread.ranks()};
    run.config.slots.recompute = seed % 2 == 0 ? Recompute::full : Recompute::none;
    std::mutex mutex;
    std::map<int, std::vector<double>> losses;  // by rank
    run.between = [&](Control& control, Engine& engine) {
      const EvaluationResult result = evaluated(control, engine);
      const std::lock_guard lock(mutex);
      losses[control.rank()].push_back(result.loss);
    };
    test::expect_same_bits(run_engines(run), run_engines(spread));
    ASSERT_EQ(losses[0].size(), 4u);
    EXPECT_LT(losses[0].back(), losses[0].front());  // it sees what the steps have changed
    for (const auto& [rank, of_rank] : losses) {
      EXPECT_EQ(of_rank, losses[0]) << "rank " << rank;
    }
  }
}

// Everything that training keeps on a device, but for weights of one rounding.
std::vector<double> state_of(const Job& job, const Engine& engine) {
  std::vector<double> all;
  const auto add = [&](const std::byte* data, size_t count) {
    const std::vector<double> values = device_values(data, count, job.request.precision);
    all.insert(all.end(), values.begin(), values.end());
  };
  for (const LocalParameter& local : engine.parameters().parameters()) {
    add(local.master, local.state.count);
    add(local.moment1, local.state.count);
    add(local.moment2, local.state.count);
    add(local.gradient, local.parameter->padded_elements);
    if (local.head_gradient != nullptr) {
      add(local.head_gradient, local.parameter->padded_elements);
    }
  }
  return all;
}

// Fault 7: no gradient is touched, nor a moment or a master weight.
TEST_F(Evaluating, LeavesGradientsMomentsAndWeightsAlone) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    test::run_ranks(2, [&](Control& control) {
      const Job job =
          make_job(validating({.schedule = "zb-v", .pipeline = 2, .precision = precision}, 5), 2,
                   control.rank());
      Engine engine(job, control, nullptr);
      engine.set_initial_weights();
      engine.submit(0, {.learning_rate = 1e-3});
      engine.wait(0);
      engine.drain();
      const std::vector<double> before = state_of(job, engine);
      evaluated(control, engine);
      EXPECT_TRUE(state_of(job, engine) == before) << "rank " << control.rank();
      control.barrier();
    });
  }
}

// Fault 31: one buffer too many. Fault 34: memory that grows with every evaluation.
TEST_F(Evaluating, TheBudgetHoldsWhatItNeedsAndItAllocatesNothingMore) {
  for (const Spread& spread : {Spread{.pipeline = 2},
                               {.schedule = "interleaved", .pipeline = 2, .chunks = 4},
                               {.schedule = "v-half", .pipeline = 2, .precision = Precision::bf16},
                               {.schedule = "chimera", .pipeline = 2, .replicas = 2, .zero = 1}}) {
    test::run_ranks(spread.ranks(), [&](Control& control) {
      SCOPED_TRACE(to_string(spread));
      emulator::reset_counters(control.rank());
      const Job job = make_job(validating(spread, 23), spread.ranks(), control.rank());
      Engine engine(job, control, nullptr);
      engine.set_initial_weights();
      for (int64_t step = 0; step < 2; ++step) {
        evaluated(control, engine);
        engine.submit(step, {.learning_rate = 1e-3});
        engine.wait(step);
      }
      EXPECT_EQ(emulator::counters(control.rank()).high_water, job.budget.allocated());
      EXPECT_EQ(engine.activations().touched_slots(), engine.activations().slots());
      engine.drain();
      control.barrier();
      emulator::reset_counters(control.rank());
      evaluated(control, engine);
      EXPECT_EQ(emulator::counters(control.rank()).allocations, 0);
      control.barrier();
    });
  }
}

// Channels, slots and workspace are those of training: only tokens and losses are its own.
TEST_F(Evaluating, UsesTheMemoryOfTraining) {
  const auto budget = [](const Spread& spread, bool validates) {
    TrainConfig config = validates ? validating(spread, 8) : test::config_of(spread);
    return make_job(config, spread.ranks(), 0).budget;
  };
  for (const std::string& name : schedule::schedule_names()) {
    if (name.starts_with("pipedream")) {
      continue;
    }
    const Spread spread = {.schedule = name, .pipeline = 4, .microbatches = 8};
    const Budget with = budget(spread, true);
    const Budget without = budget(spread, false);
    EXPECT_EQ(with.allocated() - with.step_data - with.channel_slots,
              without.allocated() - without.step_data - without.channel_slots)
        << name;
    EXPECT_EQ(with.channel_slots, without.channel_slots) << name;
    EXPECT_GT(with.step_data, without.step_data) << name;
  }
}

// ---- data

// Fault 12: the last batch is short. What fills no micro-batch is dropped, the same on all ranks.
TEST_F(Evaluating, ATailThatFillsNoMicrobatchIsDropped) {
  const TemporaryDirectory directory;
  const std::string text(3 * 16 + 1, 'e');
  const auto evaluate_text = [&](const std::string& tail, const Spread& spread) {
    TrainConfig config = test::config_of(spread);
    write_file(directory.file("train"), std::string(1000, 't'));
    write_file(directory.file("text"), text + tail);
    config.data = {directory.file("train")};
    config.validation = {directory.file("text")};
    return evaluate_once(config, spread.ranks());
  };
  const EvaluationResult whole = evaluate_text("", {});
  EXPECT_EQ(whole.targets, 3u * 16);
  for (const Spread& spread : {Spread{}, {.pipeline = 2}, {.pipeline = 2, .replicas = 2}}) {
    const EvaluationResult with_tail = evaluate_text("a tail of 15..", spread);
    EXPECT_EQ(with_tail.loss, whole.loss);
    EXPECT_EQ(with_tail.targets, whole.targets);
  }
}

TEST_F(Evaluating, WrongValidationDataAreRefused) {
  const TemporaryDirectory directory;
  write_file(directory.file("short"), "sixteen tokens..");
  const auto refusal = [&](const std::string& file) {
    TrainConfig config = test::config_of({});
    config.validation = {directory.file(file)};
    config.data = {directory.file("short"), directory.file("short"), directory.file("short"),
                   directory.file("short"), directory.file("short")};
    return usage_error([&] { make_job(config, 1, 0); });
  };
  const std::string message = refusal("short");
  for (const char* part : {"--validation", "16 tokens are available", "needs 17"}) {
    EXPECT_PRED2(contains, message, part);
  }
  EXPECT_PRED2(contains, refusal("absent"), "--validation " + directory.file("absent"));
  TrainConfig mixed = test::config_of({});
  write_file(directory.file("text"), std::string(100, 'e'));
  mixed.validation = {directory.file("text")};
  const std::string kinds = usage_error([&] { make_job(mixed, 1, 0); });
  EXPECT_PRED2(contains, kinds, "--validation");
  EXPECT_PRED2(contains, kinds, "one kind");
}

TEST_F(Evaluating, FlagsOfValidationNeedItsFiles) {
  TrainConfig config = test::config_of({});
  config.validation_every = 5;
  EXPECT_PRED2(contains, usage_error([&] { make_job(config, 1, 0); }), "--validation-every 5");
  config.validation = config.data;
  config.validation_every = 0;
  EXPECT_PRED2(contains, usage_error([&] { config.check(); }), "--validation-every 0");
  config.validation_every = 1;
  config.validation_batches = 0;
  EXPECT_PRED2(contains, usage_error([&] { config.check(); }), "--validation-batches 0");
}

// Every valid target weighs the same: targets of -1 are neither added nor counted.
TEST_F(Evaluating, IgnoredTargetsDoNotCount) {
  class SomeIgnored final : public DataSource {
   public:
    SomeIgnored(const DataSource& all, const BatchShape& pass) : all_(all), pass_(pass) {}
    void fill(int64_t pass, int replica, int* inputs, int* targets) const override {
      all_.fill(pass, replica, inputs, targets);
      if (targets != nullptr && pass == 0) {
        std::fill_n(targets, valid_of_first(), -1);
      }
    }
    size_t valid_targets(int64_t pass) const override {
      return all_.valid_targets(pass) - (pass == 0 ? valid_of_first() : 0);
    }

   private:
    size_t valid_of_first() const { return pass_.rows() - 3; }  // of its first micro-batch
    const DataSource& all_;
    BatchShape pass_;
  };
  const Spread spread = {.pipeline = 2, .precision = Precision::fp64};
  const auto sum_of = [&](int64_t windows, bool ignore) {
    EvaluationResult result;
    test::run_ranks(2, [&](Control& control) {
      Job job = make_job(validating(spread, windows), 2, control.rank());
      const std::unique_ptr<DataSource> all = std::move(job.evaluation->batches);
      job.evaluation->batches = std::make_unique<SomeIgnored>(*all, job.evaluation->pass);
      if (!ignore) {
        job.evaluation->batches =
            std::make_unique<OrderedWindows>(*job.evaluation->tokens, job.evaluation->pass,
                                             size_t(windows), job.model.config.vocabulary);
      }
      Engine engine(job, control, nullptr);
      engine.set_initial_weights();
      const EvaluationResult own = evaluated(control, engine);
      if (control.rank() == 0) {
        result = own;
      }
      control.barrier();
    });
    return result;
  };
  const EvaluationResult first = sum_of(1, true);
  const EvaluationResult three = sum_of(3, true);
  const EvaluationResult one_whole = sum_of(1, false);
  const EvaluationResult three_whole = sum_of(3, false);
  EXPECT_EQ(first.targets, 3u);
  EXPECT_EQ(three.targets, 3u * 16 - 13);
  // The last two micro-batches give the same in both.
  EXPECT_NEAR(three.loss * 35 - first.loss * 3, three_whole.loss * 48 - one_whole.loss * 16, 1e-9);
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
