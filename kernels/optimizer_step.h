#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace pipetrain::kernels {

// What AdamW reads from device memory, and the host one step late. A: accumulator type.
template <typename A>
struct OptimizerScalars {
  A learning_rate = 0;     // the host writes it before optimizer_step
  A clip = 1;              // factor of the gradients
  A bias_correction1 = 1;  // 1 - beta1^step
  A bias_correction2 = 1;  // 1 - beta2^step
  A norm = 0;              // of the whole gradient, before clipping
  A loss = 0;
  int64_t step = 0;  // updates done, this one included; skipped ones are not counted
  int skip = 0;      // 1: norm or loss is not finite, nothing is updated
  int stop = 0;      // 1: some rank asked to stop
};

// Where the values of all ranks lie after the all-gather. Positions are indices into `gathered`.
// All pointers are device memory.
template <typename A>
struct GatheredStep {
  const A* gathered = nullptr;
  const int* block_positions = nullptr;  // (blocks) sums of squares, in (tensor, block) order
  int blocks = 0;
  const int* loss_positions = nullptr;  // (losses) scaled losses, in micro-batch order
  int losses = 0;
  const int* stop_positions = nullptr;  // (stops) a value other than 0 asks to stop
  int stops = 0;
};

// Fills everything of scalars but the learning rate: norm (sums are added in double, in the order
// of block_positions), loss, skip, stop, clip = min(1, max_norm / (norm + 1e-6)) as in PyTorch's
// clip_grad_norm_ (max_norm 0: no clipping), the step and its bias corrections.
template <typename A>
void optimizer_step(OptimizerScalars<A>* scalars, const GatheredStep<A>& gathered, double max_norm,
                    double beta1, double beta2, cudaStream_t stream);

}  // namespace pipetrain::kernels
