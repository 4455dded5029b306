#pragma once

#include <cstddef>

#include "kernels/types.h"

namespace pipetrain::kernels {

// output (n) = a + b, rounded once. output may be a or b.
template <typename T>
void residual_add(T* output, const T* a, const T* b, size_t n, cudaStream_t stream);

// y (n) += x. Accumulator types.
template <typename A>
void add(A* y, const A* x, size_t n, cudaStream_t stream);

// y (n) = x rounded to T.
template <typename T>
void convert(T* y, const acc_t<T>* x, size_t n, cudaStream_t stream);

// Bytes become 0.
void zero(void* data, size_t bytes, cudaStream_t stream);

}  // namespace pipetrain::kernels
