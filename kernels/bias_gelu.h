#pragma once

#include <cstddef>

#include "kernels/types.h"

namespace pipetrain::kernels {

// dbias (C) += column sums of dy (rows, C). workspace: bias_workspace_bytes. (Biases are added in
// the forward by the matmul.)
template <typename T>
void bias_backward(acc_t<T>* dbias, const T* dy, int rows, int channels, acc_t<T>* workspace,
                   cudaStream_t stream);

template <typename T>
size_t bias_workspace_bytes(int rows, int channels);

// y (n) = gelu(x), the tanh form. y may be x.
template <typename T>
void gelu_forward(T* y, const T* x, size_t n, cudaStream_t stream);

// dx (n) = dy * gelu'(x). dx may be dy or x.
template <typename T>
void gelu_backward(T* dx, const T* dy, const T* x, size_t n, cudaStream_t stream);

}  // namespace pipetrain::kernels
