#pragma once

#include "kernels/types.h"

namespace pipetrain::kernels {

enum class LogitGradient { none, replace };

// losses (rows) = *scale * cross entropy of logits (rows, Vp) at targets (rows); columns V..Vp-1
// count as -inf. A target of -1 is ignored: its loss is 0. LogitGradient::replace: the logits are
// replaced by the gradient of the losses' sum, 0 in ignored rows and in columns V..Vp-1. scale is
// in device memory.
template <typename T>
void cross_entropy(T* logits, acc_t<T>* losses, const int* targets, const acc_t<T>* scale, int rows,
                   int vocabulary, int padded_vocabulary, LogitGradient gradient,
                   cudaStream_t stream);

// output (1) = or += the sum of losses (rows), in an order that depends on rows alone.
enum class Accumulate { no, yes };
template <typename A>
void sum_losses(A* output, const A* losses, int rows, Accumulate accumulate, cudaStream_t stream);

}  // namespace pipetrain::kernels
