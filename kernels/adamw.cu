// AdamW (Loshchilov and Hutter 2019), decoupled weight decay, as torch.optim.AdamW.

#include <cmath>

#include "kernels/adamw.h"
#include "kernels/parallel.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

// Constants of one update.
template <typename A>
struct AdamwFactors {
  A decay;
  A beta1, one_minus_beta1;
  A beta2, one_minus_beta2;
  A epsilon;
};

template <typename T>
__global__ void adamw_kernel(T* weight, acc_t<T>* master, acc_t<T>* moment1, acc_t<T>* moment2,
                             const acc_t<T>* gradient, size_t n, AdamwFactors<acc_t<T>> factors,
                             const OptimizerScalars<acc_t<T>>* scalars) {
  using A = acc_t<T>;
  constexpr int size = pack_size<T>;
  if (scalars->skip != 0) {
    return;
  }
  const A clip = scalars->clip;
  const A kept = 1 - scalars->learning_rate * factors.decay;
  const A step_size = scalars->learning_rate / scalars->bias_correction1;
  const A correction2 = 1 / std::sqrt(scalars->bias_correction2);
#pragma GCC ivdep
  for (size_t i : elements<size>(n)) {
    const auto gradient_pack = load<size>(gradient + i);
    auto m = load<size>(moment1 + i);
    auto v = load<size>(moment2 + i);
    auto p = load<size>(master + i);
    Pack<T, size> weight_pack;
    for (int j = 0; j < size; ++j) {
      const A g = gradient_pack[j] * clip;
      m[j] = factors.beta1 * m[j] + factors.one_minus_beta1 * g;
      v[j] = factors.beta2 * v[j] + factors.one_minus_beta2 * g * g;
      p[j] = kept * p[j] - step_size * m[j] / (std::sqrt(v[j]) * correction2 + factors.epsilon);
      weight_pack[j] = T(p[j]);
    }
    store(moment1 + i, m);
    store(moment2 + i, v);
    store(master + i, p);
    if constexpr (!std::is_same_v<T, A>) {
      store(weight + i, weight_pack);
    }
  }
}

}  // namespace

// ---- launchers

template <typename T>
void adamw(T* weight, acc_t<T>* master, acc_t<T>* moment1, acc_t<T>* moment2,
           const acc_t<T>* gradient, size_t n, const AdamwSettings& settings,
           const OptimizerScalars<acc_t<T>>* scalars, cudaStream_t stream) {
  using A = acc_t<T>;
  check_multiple_of_8(n, "the number of elements");
  const AdamwFactors<A> factors{A(settings.decay), A(settings.beta1),     A(1 - settings.beta1),
                                A(settings.beta2), A(1 - settings.beta2), A(settings.epsilon)};
  launch(adamw_kernel<T>, warps_for_elements<T>(n), stream, weight, master, moment1, moment2,
         gradient, n, factors, scalars);
}

template void adamw(float*, float*, float*, float*, const float*, size_t, const AdamwSettings&,
                    const OptimizerScalars<float>*, cudaStream_t);
template void adamw(bf16*, float*, float*, float*, const float*, size_t, const AdamwSettings&,
                    const OptimizerScalars<float>*, cudaStream_t);
#ifdef PIPETRAIN_HOST
template void adamw(double*, double*, double*, double*, const double*, size_t, const AdamwSettings&,
                    const OptimizerScalars<double>*, cudaStream_t);
#endif

}  // namespace pipetrain::kernels
