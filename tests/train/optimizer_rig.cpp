#include "tests/train/optimizer_rig.h"

#include <mutex>

#include "tests/support/rank_threads.h"

namespace pipetrain::optimizer_rig {

Outcome reference(const Case& test) {
  Outcome outcome;
  std::map<std::string, std::vector<double>> moment1;
  std::map<std::string, std::vector<double>> moment2;
  const std::vector<Parameter> table = parameter_table(model());
  for (const Parameter& parameter : table) {
    const std::vector<double> start = initial_values(parameter, model(), 1);
    for (const double value : start) {
      outcome.masters[parameter.name].push_back(
          test.precision == Precision::fp64 ? value : double(float(value)));
    }
    moment1[parameter.name].resize(start.size());
    moment2[parameter.name].resize(start.size());
  }
  const auto gradient = [&](const Parameter& parameter, size_t element, int64_t step) {
    return noise(parameter.name, element, step) +
           (parameter.tied ? noise("head", element, step) : 0);
  };
  int64_t updates = 0;
  for (int64_t step = 0; step < test.steps; ++step) {
    StepResult result;
    result.step = step;
    double squares = 0;
    for (const Parameter& parameter : table) {
      for (size_t i = 0; i < parameter.elements(); ++i) {
        squares += std::pow(gradient(parameter, i, step), 2);
      }
    }
    for (int i = 0; i < microbatches; ++i) {
      result.loss += loss_of(step, i);
    }
    result.grad_norm = std::sqrt(squares);
    outcome.results.push_back(result);
    if (test.broken_rank && step == 4) {
      continue;
    }
    ++updates;
    const AdamwOptions& o = test.options;
    const double clip =
        o.grad_clip > 0 ? std::min(1.0, o.grad_clip / (result.grad_norm + 1e-6)) : 1;
    const double rate = 1e-3 * double(step + 1);
    for (const Parameter& parameter : table) {
      for (size_t i = 0; i < parameter.elements(); ++i) {
        double& weight = outcome.masters[parameter.name][i];
        double& m = moment1[parameter.name][i];
        double& v = moment2[parameter.name][i];
        const double g = clip * gradient(parameter, i, step);
        weight *= 1 - rate * (parameter.shape.size() == 2 ? o.weight_decay : 0);
        m = o.beta1 * m + (1 - o.beta1) * g;
        v = o.beta2 * v + (1 - o.beta2) * g * g;
        const double m_hat = m / (1 - std::pow(o.beta1, double(updates)));
        const double v_hat = v / (1 - std::pow(o.beta2, double(updates)));
        weight -= rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
      }
    }
  }
  return outcome;
}

Outcome run(const Case& test) {
  Outcome outcome;
  std::mutex mutex;
  test::run_ranks(int(test.stages.size()), [&](Control& control) {
    Rank rank(test, control);
    std::vector<StepResult> results;
    for (int64_t step = 0; step < test.steps; ++step) {
      rank.optimizer().begin_step(rank.stream());
      rank.stream().synchronize();
      rank.fill_gradients(step);
      rank.submit(step);
      if (step > 0) {
        results.push_back(rank.optimizer().wait_result(step - 1));
      }
      rank.stream().synchronize();
    }
    results.push_back(rank.optimizer().wait_result(test.steps - 1));

    const std::lock_guard lock(mutex);
    for (const LocalParameter& local : rank.store().parameters()) {
      const std::vector<double> master = rank.download(local.master, local.parameter->elements());
      const auto [entry, added] = outcome.masters.emplace(local.parameter->name, master);
      EXPECT_EQ(entry->second, master) << "copies of " << local.parameter->name << " differ";
    }
    if (outcome.results.empty()) {
      outcome.results = results;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].skipped, outcome.results[i].skipped);
      EXPECT_EQ(results[i].stop, outcome.results[i].stop);
      EXPECT_EQ(results[i].busy, outcome.results[i].busy);
      if (!results[i].skipped) {
        EXPECT_EQ(results[i].grad_norm, outcome.results[i].grad_norm);
        EXPECT_EQ(results[i].loss, outcome.results[i].loss);
      }
    }
  });
  return outcome;
}

}  // namespace pipetrain::optimizer_rig
