// Softmax cross entropy over the vocabulary, its gradient in place of the logits, and the sum of
// the losses.

#include <cmath>
#include <limits>

#include "kernels/cross_entropy.h"
#include "kernels/math.h"
#include "kernels/parallel.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

template <typename T>
__global__ void cross_entropy_kernel(T* logits, acc_t<T>* losses, const int* targets,
                                     const acc_t<T>* scale, int rows, int vocabulary,
                                     int padded_vocabulary, LogitGradient gradient) {
  using A = acc_t<T>;
  for (int row : rows_of_this_warp(rows)) {
    T* row_logits = logits + size_t(row) * padded_vocabulary;
    const int target = targets[row];
    const A row_scale = *scale;
    if (target < 0) {
      if (gradient == LogitGradient::replace) {
        for (int v : lanes(padded_vocabulary)) {
          row_logits[v] = T(A(0));
        }
      }
      if (lane() == 0) {
        losses[row] = 0;
      }
      continue;
    }

    auto largest = ordered(-std::numeric_limits<A>::infinity());
    for (int v : lanes(vocabulary)) {
      const auto logit = ordered(A(row_logits[v]));
      largest = logit > largest ? logit : largest;
    }
    const A row_max = from_ordered(warp_max(largest));
    A sum = 0;
    for (int v : lanes(vocabulary)) {
      sum += exponential(A(row_logits[v]) - row_max);
    }
    const A row_sum = warp_sum(sum);
    const A target_logit = A(row_logits[target]) - row_max;
    if (lane() == 0) {
      losses[row] = (std::log(row_sum) - target_logit) * row_scale;
    }

    if (gradient == LogitGradient::replace) {
      const A factor = row_scale / row_sum;
      __syncwarp();  // all lanes have read the target's logit
      for (int v : lanes(vocabulary)) {
        const A softmax = exponential(A(row_logits[v]) - row_max) * factor;
        row_logits[v] = T(v == target ? softmax - row_scale : softmax);
      }
      for (int v : lanes(padded_vocabulary - vocabulary)) {
        row_logits[vocabulary + v] = T(A(0));
      }
    }
  }
}

// By one warp.
template <typename A>
__global__ void sum_losses_kernel(A* output, const A* losses, int rows, Accumulate accumulate) {
  if (warp_index() != 0) {
    return;
  }
  A sum = 0;
  for (int row : lanes(rows)) {
    sum += losses[row];
  }
  sum = warp_sum(sum);
  if (lane() == 0) {
    *output = accumulate == Accumulate::yes ? *output + sum : sum;
  }
}

}  // namespace

// ---- launchers

template <typename T>
void cross_entropy(T* logits, acc_t<T>* losses, const int* targets, const acc_t<T>* scale, int rows,
                   int vocabulary, int padded_vocabulary, LogitGradient gradient,
                   cudaStream_t stream) {
  launch(cross_entropy_kernel<T>, rows, stream, logits, losses, targets, scale, rows, vocabulary,
         padded_vocabulary, gradient);
}

template <typename A>
void sum_losses(A* output, const A* losses, int rows, Accumulate accumulate, cudaStream_t stream) {
  launch(sum_losses_kernel<A>, 1, stream, output, losses, rows, accumulate);
}

template void cross_entropy(float*, float*, const int*, const float*, int, int, int, LogitGradient,
                            cudaStream_t);
template void cross_entropy(bf16*, float*, const int*, const float*, int, int, int, LogitGradient,
                            cudaStream_t);
template void sum_losses(float*, const float*, int, Accumulate, cudaStream_t);
#ifdef PIPETRAIN_HOST
template void cross_entropy(double*, double*, const int*, const double*, int, int, int,
                            LogitGradient, cudaStream_t);
template void sum_losses(double*, const double*, int, Accumulate, cudaStream_t);
#endif

}  // namespace pipetrain::kernels
