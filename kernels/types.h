#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <library_types.h>

namespace pipetrain::kernels {

using bf16 = __nv_bfloat16;

// What sums over T are accumulated in and statistics, losses, gradients and moments are kept in.
// double exists in host builds only, for tests.
template <typename T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <typename T>
using acc_t = typename Accumulator<T>::type;

// cuBLASLt's name of a type.
template <typename T>
constexpr cudaDataType data_type = CUDA_R_32F;
template <>
constexpr cudaDataType data_type<bf16> = CUDA_R_16BF;
template <>
constexpr cudaDataType data_type<double> = CUDA_R_64F;

}  // namespace pipetrain::kernels
