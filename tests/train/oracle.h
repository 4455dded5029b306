#pragma once

#include "pipetrain/model/config.h"
#include "train/training.h"

namespace pipetrain::test {

// Losses, norms and the first step's gradients against what PyTorch computed in float64.
void expect_matches_oracle(const Training& training, Precision precision);

}  // namespace pipetrain::test
