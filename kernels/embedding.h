#pragma once

#include "kernels/types.h"

namespace pipetrain::kernels {

// output (rows, C) = wte[tokens] + wpe[position]; tokens (rows) in [0, V); the position of a row is
// row % sequence.
template <typename T>
void embedding_forward(T* output, const int* tokens, const T* wte, const T* wpe, int rows,
                       int sequence, int channels, cudaStream_t stream);

// Adds the gradients to dwte (V, C) and dwpe (sequence, C). The rows of one token or position are
// added in ascending order.
template <typename T>
void embedding_backward(acc_t<T>* dwte, acc_t<T>* dwpe, const T* doutput, const int* tokens,
                        int rows, int sequence, int channels, cudaStream_t stream);

}  // namespace pipetrain::kernels
