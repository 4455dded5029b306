#pragma once

#include <string>
#include <vector>

#include "pipetrain/train/trainer.h"

namespace pipetrain::test {

// What a run left behind.
struct Training {
  std::vector<TrainReport> reports;  // per rank
  std::vector<StepMetrics> steps;    // of rank 0
  std::string gradients;             // the bytes of --dump-gradients
  std::string weights;               // the bytes of model.safetensors of --export

  std::vector<double> losses() const;
  std::vector<double> norms() const;
};

// The fixture's settings: 8 layers, 8 micro-batches of 2 sequences of 32 tokens, 10 steps.
TrainConfig fixture_config();

// Trains on `ranks` threads with emulated devices of their own; dumps gradients and exports.
Training train_on_threads(TrainConfig config, int ranks);

}  // namespace pipetrain::test
