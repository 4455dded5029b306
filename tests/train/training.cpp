#include "train/training.h"

#include <optional>

#include "support/rank_threads.h"
#include "train/temporary.h"

namespace pipetrain::test {

std::vector<double> Training::losses() const {
  std::vector<double> losses;
  for (const StepMetrics& step : steps) {
    losses.push_back(step.loss);
  }
  return losses;
}

std::vector<double> Training::norms() const {
  std::vector<double> norms;
  for (const StepMetrics& step : steps) {
    norms.push_back(step.grad_norm);
  }
  return norms;
}

TrainConfig fixture_config() {
  const std::string directory = std::string(PIPETRAIN_TEST_DATA) + "/gpt2_l8_c32";
  TrainConfig config;
  config.init = directory;
  config.data = {directory + "/tokens.bin"};
  config.shuffle = false;
  config.microbatches = 8;
  config.microbatch_size = 2;
  config.steps = 10;
  config.learning_rate = 1e-3;
  config.timeout = 120;
  return config;
}

Training train_on_threads(TrainConfig config, int ranks) {
  const TemporaryDirectory directory;
  const bool gradients = config.schedule != "pipedream";  // which has none of a whole step
  config.dump_gradients = gradients ? directory.file("gradients.safetensors") : "";
  config.export_dir = directory.file("export");
  std::vector<std::optional<TrainReport>> reports(static_cast<size_t>(ranks));
  Training result;
  run_ranks(ranks, [&](Control& control) {
    const auto keep = [&](const StepMetrics& metrics) {
      if (control.rank() == 0) {
        result.steps.push_back(metrics);
      }
    };
    reports[size_t(control.rank())].emplace(train(config, control, keep));
  });
  for (std::optional<TrainReport>& report : reports) {
    result.reports.push_back(std::move(*report));
  }
  result.gradients = gradients ? read_file(config.dump_gradients) : "";
  result.weights = read_file(config.export_dir + "/model.safetensors");
  return result;
}

}  // namespace pipetrain::test
