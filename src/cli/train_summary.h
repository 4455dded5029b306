#pragma once

#include <string>

#include "pipetrain/train/train_config.h"
#include "pipetrain/train/trainer.h"

namespace pipetrain {

// What a run leaves on standard output: the timeline of its last step, peak activations beside the
// cap, bubble, loss, and where the files are. `colour`: ANSI colours. `cores`: of this host, for
// the remark that ranks without a core of their own cannot run side by side.
std::string train_summary(const TrainConfig& config, const TrainReport& report, bool colour,
                          unsigned cores);

}  // namespace pipetrain
