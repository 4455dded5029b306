// What AdamW needs to know about the whole gradient: its norm, the clip factor, whether to skip.

#include <cmath>

#include "kernels/optimizer_step.h"
#include "kernels/parallel.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

// By one warp. The lanes' shares, and so the order of the sums, depend on the counts alone.
template <typename A>
__global__ void optimizer_step_kernel(OptimizerScalars<A>* scalars, GatheredStep<A> step,
                                      double max_norm, double beta1, double beta2) {
  if (warp_index() != 0) {
    return;
  }
  double squares = 0;
  for (int i : lanes(step.blocks)) {
    squares += double(step.gathered[step.block_positions[i]]);
  }
  double stops = 0;
  for (int i : lanes(step.stops)) {
    stops += step.gathered[step.stop_positions[i]] != A(0) ? 1 : 0;
  }
  squares = warp_sum(squares);
  stops = warp_sum(stops);
  if (lane() != 0) {
    return;
  }
  double loss = 0;
  for (int i = 0; i < step.losses; ++i) {
    loss += double(step.gathered[step.loss_positions[i]]);
  }

  const double norm = std::sqrt(squares);
  scalars->norm = A(norm);
  scalars->loss = A(loss);
  scalars->stop = stops != 0 ? 1 : 0;
  scalars->skip = std::isfinite(norm) && std::isfinite(loss) ? 0 : 1;
  if (scalars->skip != 0) {
    return;
  }
  scalars->clip = max_norm > 0 ? A(std::fmin(1.0, max_norm / (norm + 1e-6))) : A(1);
  scalars->step += 1;
  scalars->bias_correction1 = A(1 - std::pow(beta1, double(scalars->step)));
  scalars->bias_correction2 = A(1 - std::pow(beta2, double(scalars->step)));
}

}  // namespace

// ---- launchers

template <typename A>
void optimizer_step(OptimizerScalars<A>* scalars, const GatheredStep<A>& gathered, double max_norm,
                    double beta1, double beta2, cudaStream_t stream) {
  launch(optimizer_step_kernel<A>, 1, stream, scalars, gathered, max_norm, beta1, beta2);
}

template void optimizer_step(OptimizerScalars<float>*, const GatheredStep<float>&, double, double,
                             double, cudaStream_t);
#ifdef PIPETRAIN_HOST
template void optimizer_step(OptimizerScalars<double>*, const GatheredStep<double>&, double, double,
                             double, cudaStream_t);
#endif

}  // namespace pipetrain::kernels
