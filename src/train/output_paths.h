#pragma once

#include "pipetrain/train/train_config.h"

namespace pipetrain {

// Throws UsageError that names both flags where a file that a run writes is one that it reads, or
// one that it writes for another flag too or that lies in the way of such a one.
void check_output_paths(const TrainConfig& config);

}  // namespace pipetrain
