#pragma once

#include <cstddef>

#include "kernels/types.h"

namespace pipetrain::kernels {

// y (rows, C) = (x - mean) * rstd * weight + bias; mean, rstd (rows) are kept for the backward.
// weight, bias (C), in the accumulator type: near 1 bf16 has steps of 0.8%, more than an update. y
// may be x.
template <typename T>
void layernorm_forward(T* y, acc_t<T>* mean, acc_t<T>* rstd, const T* x, const acc_t<T>* weight,
                       const acc_t<T>* bias, int rows, int channels, double epsilon,
                       cudaStream_t stream);

// dx (rows, C) = gradient of x, plus dresidual (rows, C) unless it is nullptr. dx may be dy or
// dresidual.
template <typename T>
void layernorm_backward_input(T* dx, const T* dy, const T* x, const acc_t<T>* mean,
                              const acc_t<T>* rstd, const acc_t<T>* weight, const T* dresidual,
                              int rows, int channels, cudaStream_t stream);

// Adds to dweight and dbias (C). workspace: layernorm_workspace_bytes. Comes before
// layernorm_backward_input where that overwrites dy.
template <typename T>
void layernorm_backward_weight(acc_t<T>* dweight, acc_t<T>* dbias, const T* dy, const T* x,
                               const acc_t<T>* mean, const acc_t<T>* rstd, int rows, int channels,
                               acc_t<T>* workspace, cudaStream_t stream);

template <typename T>
size_t layernorm_workspace_bytes(int rows, int channels);

}  // namespace pipetrain::kernels
