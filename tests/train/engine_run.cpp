#ifdef PIPETRAIN_HOST

#include "train/engine_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <tuple>

#include "support/rank_threads.h"
#include "train/device_values.h"
#include "train/training.h"

namespace pipetrain::test {
namespace {

// Values of a tensor as several ranks see them.
class Collected {
 public:
  void add(const LocalParameter& local, const ElementRange& range,
           const std::vector<double>& values, const std::string& what) {
    std::vector<double>& all = values_[local.parameter->name];
    all.resize(local.parameter->elements(), unknown);
    size_t different = 0;
    for (size_t i = 0; i < range.count; ++i) {
      double& known = all[range.first + i];
      different += known != unknown && !same(known, values[i]);
      known = values[i];
    }
    EXPECT_EQ(different, 0u) << what << " of " << local.parameter->name
                             << ": elements that differ from another copy";
  }
  const Tensors& values() const { return values_; }

 private:
  static constexpr double unknown = -1.25e300;
  static bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
  Tensors values_;
};

class Collector {
 public:
  explicit Collector(int64_t steps) : weights_(size_t(steps) + 1), masters_(size_t(steps) + 1) {}

  // After `steps` steps.
  void add_weights(int64_t steps, const Job& job, const Engine& engine) {
    for (const LocalParameter& local : engine.parameters().parameters()) {
      const size_t count = local.parameter->elements();
      const std::vector<double> values =
          local.separate_master() ? device_bf16_values(local.weight, count)
                                  : device_values(local.weight, count, job.request.precision);
      const std::string when = " after step " + std::to_string(steps);
      const std::lock_guard lock(mutex_);
      weights_[size_t(steps)].add(local, {0, count}, values, "weights" + when);
      if (local.separate_master() && local.state.count > 0) {
        const ElementRange range = without_padding(local.state, count);
        masters_[size_t(steps)].add(local, range,
                                    device_values(local.master, range.count, job.request.precision),
                                    "masters" + when);
      }
    }
  }

  void add_gradients(const Job& job, const Engine& engine) {
    for (const LocalParameter& local : engine.parameters().parameters()) {
      const ElementRange range = without_padding(local.state, local.parameter->elements());
      const size_t bytes = accumulator_bytes(job.request.precision);
      const std::vector<double> values =
          device_values(local.gradient + range.first * bytes, range.count, job.request.precision);
      const std::lock_guard lock(mutex_);
      gradients_.add(local, range, values, "gradients");
    }
  }

  void add_results(const std::vector<StepResult>& results) {
    const std::lock_guard lock(mutex_);
    if (steps_.empty()) {
      steps_ = results;
    }
    ASSERT_EQ(results.size(), steps_.size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].skipped, steps_[i].skipped);
      EXPECT_EQ(results[i].updates, steps_[i].updates);
      if (!results[i].skipped) {
        EXPECT_EQ(results[i].loss, steps_[i].loss);
        EXPECT_EQ(results[i].grad_norm, steps_[i].grad_norm);
      }
    }
  }

  EngineResult result() const {
    EngineResult result{steps_, {}, gradients_.values()};
    for (const Collected& weights : weights_) {
      result.weights.push_back(weights.values());
    }
    return result;
  }

 private:
  std::mutex mutex_;
  std::vector<Collected> weights_;  // by steps done
  std::vector<Collected> masters_;
  Collected gradients_;
  std::vector<StepResult> steps_;
};

}  // namespace

std::vector<double> EngineResult::losses() const {
  std::vector<double> all;
  for (const StepResult& step : steps) {
    all.push_back(step.loss);
  }
  return all;
}

std::vector<double> EngineResult::norms() const {
  std::vector<double> all;
  for (const StepResult& step : steps) {
    all.push_back(step.grad_norm);
  }
  return all;
}

std::string to_string(const Spread& spread) {
  return fmt::format("{} p={} v={} m={} d={} zero={} {}", spread.schedule, spread.pipeline,
                     spread.chunks, spread.microbatches, spread.replicas, spread.zero,
                     pipetrain::to_string(spread.precision));
}

TrainConfig config_of(const Spread& spread) {
  TrainConfig config = fixture_config();
  config.schedule = spread.schedule;
  config.microbatches = spread.microbatches;
  config.microbatch_size = 1;
  config.sequence_length = 16;
  config.data_parallel = spread.replicas;
  config.zero = spread.zero;
  config.precision = spread.precision;
  if (spread.schedule != "pipedream") {
    config.grad_clip = 0.1;  // below every norm
  }
  if (spread.chunks > 0) {
    config.chunks = spread.chunks;
  }
  return config;
}

EngineResult run_engines(const Spread& spread, int64_t steps) {
  return run_engines(EngineRun{config_of(spread), spread.ranks(), steps});
}

const EngineResult& one_stage(const Spread& spread) {
  static std::map<std::tuple<int, int, Precision>, EngineResult> results;
  const std::tuple key(spread.microbatches, spread.replicas, spread.precision);
  if (!results.contains(key)) {
    results[key] = run_engines(Spread{.microbatches = spread.microbatches,
                                      .replicas = spread.replicas,
                                      .precision = spread.precision});
  }
  return results[key];
}

EngineResult run_engines(const EngineRun& run) {
  Collector collector(run.steps);
  run_ranks(run.ranks, [&](Control& control) {
    Job job = make_job(run.config, run.ranks, control.rank());
    if (run.source) {
      job.batches = run.source(job);
    }
    Engine engine(job, control, nullptr);
    engine.set_initial_weights();
    if (run.between) {
      run.between(control, engine);
    }
    collector.add_weights(0, job, engine);
    std::vector<StepResult> results;
    for (int64_t step = 0; step < run.steps; ++step) {
      control.barrier();
      if (run.before) {
        run.before(step, job, engine);
        control.barrier();
      }
      engine.submit(step, {.learning_rate = run.config.learning_rate});
      results.push_back(engine.wait(step));
      engine.drain();
      if (run.after) {
        control.barrier();
        run.after(step, job, engine);
      }
      if (run.between) {
        run.between(control, engine);
      }
      collector.add_weights(step + 1, job, engine);
      if (step == 0) {
        collector.add_gradients(job, engine);
      }
    }
    collector.add_results(results);
    control.barrier();
  });
  return collector.result();
}

void expect_same_bits(const EngineResult& result, const EngineResult& reference) {
  EXPECT_EQ(result.losses(), reference.losses());
  EXPECT_EQ(result.norms(), reference.norms());
  for (const auto& [name, values] : reference.gradients) {
    EXPECT_TRUE(result.gradients.at(name) == values) << "gradient of " << name;
  }
  ASSERT_EQ(result.weights.size(), reference.weights.size());
  for (size_t steps = 0; steps < reference.weights.size(); ++steps) {
    for (const auto& [name, values] : reference.weights[steps]) {
      EXPECT_TRUE(result.weights[steps].at(name) == values)
          << "weights of " << name << " after " << steps << " steps";
    }
  }
}

void expect_near(const EngineResult& result, const EngineResult& reference, double tolerance) {
  ASSERT_EQ(result.steps.size(), reference.steps.size());
  for (size_t i = 0; i < reference.steps.size(); ++i) {
    const StepResult& step = reference.steps[i];
    EXPECT_NEAR(result.steps[i].loss, step.loss, tolerance * step.loss) << "step " << i;
    EXPECT_NEAR(result.steps[i].grad_norm, step.grad_norm, tolerance * step.grad_norm)
        << "step " << i;
  }
  for (const auto& [name, values] : reference.gradients) {
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(result.gradients.at(name)[i] - values[i], 2);
      size += std::pow(values[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(size)) << name;
  }
}

EmulatorSettings::EmulatorSettings() : saved_(emulator::settings()) {
  calm();
}

void EmulatorSettings::disturb(uint64_t seed) const {
  emulator::Settings settings = saved_;
  settings.devices = 16;
  settings.delay_seed = seed;
  settings.max_delay_us = 40;
  settings.one_at_a_time = seed % 3 == 0;
  emulator::set_settings(settings);
}

void EmulatorSettings::calm() const {
  emulator::Settings settings = saved_;
  settings.devices = 16;
  emulator::set_settings(settings);
}

}  // namespace pipetrain::test

#endif  // PIPETRAIN_HOST
