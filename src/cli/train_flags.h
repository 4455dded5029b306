#pragma once

#include <CLI/App.hpp>
#include <string>

#include "pipetrain/train/train_config.h"

namespace pipetrain {

// Which model. The flags hang on `app` and write into `config`.
void add_model_flags(CLI::App& app, TrainConfig& config);
// How it is cut, spread over ranks and scheduled. `precision` is for parse_precision().
// --recompute and --defer.
void add_slot_flags(CLI::App& app, SlotPolicy& slots);
void add_pipeline_flags(CLI::App& app, TrainConfig& config, std::string& precision);

}  // namespace pipetrain
