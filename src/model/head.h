#pragma once

#include "model/ops.h"
#include "model/workspace.h"
#include "pipetrain/model/stage.h"

namespace pipetrain {

// The last layer norm, the matrix that gives logits, and the loss. Works through fixed chunks of
// rows and computes gradients in the same pass, so that the logits of a micro-batch are never kept.
template <typename T>
class Head {
 public:
  // `workspace` must outlive it.
  Head(const GptConfig& config, const MicrobatchShape& shape, const ParameterStore& store,
       GptWorkspace& workspace);

  // *loss = scale * sum of the cross entropies of residual (R, C) at targets (R). With
  // hidden_gradient (R, C), not nullptr: it is filled and weight gradients are added to.
  void run(const T* residual, const int* targets, const kernels::acc_t<T>* scale,
           kernels::acc_t<T>* loss, T* hidden_gradient, cudaStream_t stream) const;

 private:
  void run_chunk(const T* residual, const int* targets, const kernels::acc_t<T>* scale,
                 kernels::acc_t<T>* losses, T* hidden_gradient, int rows,
                 cudaStream_t stream) const;

  kernels::Matmul& matmul_;
  HeadScratch<T> scratch_;
  Weight<kernels::acc_t<T>> norm_weight_;
  Weight<kernels::acc_t<T>> norm_bias_;
  Weight<T> matrix_;  // (Vp, C); with a tied head the gradient is the head's part
  int rows_;
  int chunk_;
  int channels_;
  int vocabulary_;
  int padded_;
  double epsilon_;
};

}  // namespace pipetrain
