#pragma once

#include "train/engine_run.h"

namespace pipetrain::test {

// What `steps` steps of --schedule pipedream or pipedream-2bw must give, by one process on one
// device: micro-batches one after the other, every version of the weights kept under its number.
//   pipedream      update n of a stage turns its version n-1 into n with the gradient of
//   micro-batch
//                  n. Micro-batch i (from 0) of a step uses on stage s of p, forward and backward,
//                  the version with which all but the p-1-s micro-batches before it are done, at
//                  the least the one that the step began with.
//   pipedream-2bw  micro-batch k (from 1) uses version max(floor((k-1)/M) - 1, 0), and
//                  W(t+1) = W(t) - update(gradient(W(t-1)))
// Weights are the newest ones in use after every step. Gradients are left empty.
EngineResult delayed_reference(const TrainConfig& config, int ranks, int64_t steps);

}  // namespace pipetrain::test
