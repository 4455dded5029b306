#pragma once

#include <emulator.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipetrain/train/engine.h"

namespace pipetrain::test {

// How a job is spread. chunks 0: the schedule's own.
struct Spread {
  std::string schedule = "1f1b";
  int pipeline = 1;  // p
  int chunks = 0;
  int microbatches = 4;  // per replica
  int replicas = 1;
  int zero = 0;
  Precision precision = Precision::fp32;

  int ranks() const { return pipeline * replicas; }
};
std::string to_string(const Spread& spread);
// The fixture's model and data, micro-batches of one sequence of 16 tokens, gradients clipped
// where the schedule allows it.
TrainConfig config_of(const Spread& spread);

// Steps of engines on threads, each with a device of its own.
struct EngineRun {
  TrainConfig config;
  int ranks = 1;  // of the job
  int64_t steps = 3;
  // The data of a job; null: that of its files.
  std::function<std::unique_ptr<DataSource>(const Job&)> source = nullptr;
  // On every rank before and after a step, while no rank has work in flight.
  std::function<void(int64_t step, const Job&, Engine&)> before = nullptr;
  std::function<void(int64_t step, const Job&, Engine&)> after = nullptr;
  // Before the first step and after each, on every rank; may be collective.
  std::function<void(Control&, Engine&)> between = nullptr;
};

// By name, padding left out.
using Tensors = std::map<std::string, std::vector<double>>;

struct EngineResult {
  std::vector<StepResult> steps;
  std::vector<Tensors> weights;  // in use, after 0, 1, ... steps
  Tensors gradients;             // of the first step

  std::vector<double> losses() const;
  std::vector<double> norms() const;
};

// Expects that all ranks have the same results, and that all copies of a weight and of a gradient
// have the same bits after every step.
EngineResult run_engines(const EngineRun& run);
EngineResult run_engines(const Spread& spread, int64_t steps = 3);

// The same global batches with one stage, one rank per replica. Computed once.
const EngineResult& one_stage(const Spread& spread);

void expect_same_bits(const EngineResult& result, const EngineResult& reference);
// Norm of the difference over the norm: of losses and norms each, and of all gradients of step 1.
void expect_near(const EngineResult& result, const EngineResult& reference, double tolerance);

// Emulated devices for 16 ranks; the settings before come back with its end.
class EmulatorSettings {
 public:
  EmulatorSettings();
  ~EmulatorSettings() { emulator::set_settings(saved_); }
  // Other random delays for every seed; every third one transfer at a time.
  void disturb(uint64_t seed) const;
  void calm() const;

 private:
  emulator::Settings saved_;
};

}  // namespace pipetrain::test
