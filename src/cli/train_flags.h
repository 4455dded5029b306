#pragma once

#include <CLI/App.hpp>
#include <string>

#include "pipetrain/train/train_config.h"

namespace pipetrain {

// Which model. The flags hang on `app` and write into `config`.
void add_model_flags(CLI::App& app, TrainConfig& config);
// --recompute and --defer.
void add_slot_flags(CLI::App& app, SlotPolicy& slots);
// How it is cut and spread over ranks. `precision` is for parse_precision().
void add_placement_flags(CLI::App& app, TrainConfig& config, std::string& precision);
// That, and what a training step is made of.
void add_pipeline_flags(CLI::App& app, TrainConfig& config, std::string& precision);

}  // namespace pipetrain
