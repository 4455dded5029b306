#pragma once

#include <cstddef>

#include "kernels/optimizer_step.h"
#include "kernels/types.h"

namespace pipetrain::kernels {

struct AdamwSettings {
  double decay = 0;  // weight decay, decoupled
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

// AdamW (Loshchilov and Hutter 2019) in the form of torch.optim.AdamW, on n elements; gradients are
// multiplied by scalars->clip. weight = master rounded to T; for fp32 and fp64 master is weight.
// Nothing changes when scalars->skip is set. scalars is in device memory.
template <typename T>
void adamw(T* weight, acc_t<T>* master, acc_t<T>* moment1, acc_t<T>* moment2,
           const acc_t<T>* gradient, size_t n, const AdamwSettings& settings,
           const OptimizerScalars<acc_t<T>>* scalars, cudaStream_t stream);

}  // namespace pipetrain::kernels
