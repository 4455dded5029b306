#pragma once

#include <cmath>

#include "kernels/types.h"

#ifdef PIPETRAIN_HOST
// The C library has vector forms of these, but declares them for -ffast-math only. They keep NaN.
extern "C" __attribute__((simd("notinbranch"), const)) float expf(float) noexcept;
extern "C" __attribute__((simd("notinbranch"), const)) float tanhf(float) noexcept;
#endif

namespace pipetrain::kernels {

__device__ inline float exponential(float x) {
  return expf(x);
}
__device__ inline double exponential(double x) {
  return exp(x);
}
__device__ inline float hyperbolic_tangent(float x) {
  return tanhf(x);
}
__device__ inline double hyperbolic_tangent(double x) {
  return tanh(x);
}

}  // namespace pipetrain::kernels
