#include "model/head.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/layernorm.h"

namespace pipetrain {

namespace {

// (rows, Vp) = (rows, C) * (Vp, C)^T
kernels::MatmulShape logits_shape(int rows, int padded, int channels) {
  kernels::MatmulShape shape;
  shape.m = rows;
  shape.n = padded;
  shape.k = channels;
  shape.transpose_b = true;
  return shape;
}

// (rows, C) = (rows, Vp) * (Vp, C)
kernels::MatmulShape input_shape(int rows, int padded, int channels) {
  kernels::MatmulShape shape;
  shape.m = rows;
  shape.n = channels;
  shape.k = padded;
  return shape;
}

// (Vp, C) = (rows, Vp)^T * (rows, C)
kernels::MatmulShape weight_shape(int rows, int padded, int channels) {
  kernels::MatmulShape shape;
  shape.m = padded;
  shape.n = channels;
  shape.k = rows;
  shape.transpose_a = true;
  return shape;
}

template <typename T>
Weight<T> matrix_of(const GptConfig& config, const ParameterStore& store) {
  if (!config.tied_head) {
    return weight<T>(store, "lm_head.weight");
  }
  const LocalParameter& tied = require(store, "wte.weight");
  return {reinterpret_cast<const T*>(tied.weight),
          reinterpret_cast<kernels::acc_t<T>*>(tied.head_gradient)};
}

}  // namespace

template <typename T>
Head<T>::Head(const GptConfig& config, const MicrobatchShape& shape, const ParameterStore& store,
              GptWorkspace& workspace)
    : matmul_(workspace.matmul()),
      scratch_(workspace.head_scratch<T>()),
      norm_weight_(weight<kernels::acc_t<T>>(store, "ln_f.weight")),
      norm_bias_(weight<kernels::acc_t<T>>(store, "ln_f.bias")),
      matrix_(matrix_of<T>(config, store)),
      rows_(shape.rows()),
      chunk_(head_chunk_rows(shape)),
      channels_(config.hidden),
      vocabulary_(config.vocabulary),
      padded_(config.padded_vocabulary()),
      epsilon_(config.layernorm_epsilon) {
  for (const int rows : {chunk_, rows_ % chunk_}) {
    if (rows > 0) {
      matmul_.template plan<T, T>(logits_shape(rows, padded_, channels_));
      matmul_.template plan<T, T>(input_shape(rows, padded_, channels_));
      matmul_.template plan<kernels::acc_t<T>, T>(weight_shape(rows, padded_, channels_));
    }
  }
}

template <typename T>
void Head<T>::run(const T* residual, const int* targets, const kernels::acc_t<T>* scale,
                  kernels::acc_t<T>* loss, T* hidden_gradient, cudaStream_t stream) const {
  for (int first = 0; first < rows_; first += chunk_) {
    const size_t offset = static_cast<size_t>(first) * static_cast<size_t>(channels_);
    run_chunk(residual + offset, targets + first, scale, scratch_.losses + first,
              hidden_gradient == nullptr ? nullptr : hidden_gradient + offset,
              std::min(chunk_, rows_ - first), stream);
  }
  kernels::sum_losses(loss, scratch_.losses, rows_, kernels::Accumulate::no, stream);
}

template <typename T>
void Head<T>::run_chunk(const T* residual, const int* targets, const kernels::acc_t<T>* scale,
                        kernels::acc_t<T>* losses, T* hidden_gradient, int rows,
                        cudaStream_t stream) const {
  using A = kernels::acc_t<T>;
  kernels::layernorm_forward(scratch_.normalized, scratch_.mean, scratch_.rstd, residual,
                             norm_weight_.value, norm_bias_.value, rows, channels_, epsilon_,
                             stream);
  matmul_.run(logits_shape(rows, padded_, channels_), scratch_.logits, scratch_.normalized,
              matrix_.value, nullptr, A{1}, A{0}, stream);
  const bool keep = hidden_gradient != nullptr;
  kernels::cross_entropy(scratch_.logits, losses, targets, scale, rows, vocabulary_, padded_,
                         keep ? kernels::LogitGradient::replace : kernels::LogitGradient::none,
                         stream);
  if (!keep) {
    return;
  }
  matmul_.run(weight_shape(rows, padded_, channels_), matrix_.gradient, scratch_.logits,
              scratch_.normalized, nullptr, A{1}, A{1}, stream);
  matmul_.run(input_shape(rows, padded_, channels_), scratch_.normalized_gradient, scratch_.logits,
              matrix_.value, nullptr, A{1}, A{0}, stream);
  kernels::layernorm_backward_weight(
      norm_weight_.gradient, norm_bias_.gradient, scratch_.normalized_gradient, residual,
      scratch_.mean, scratch_.rstd, rows, channels_, scratch_.layernorm_sums, stream);
  kernels::layernorm_backward_input(hidden_gradient, scratch_.normalized_gradient, residual,
                                    scratch_.mean, scratch_.rstd, norm_weight_.value,
                                    static_cast<const T*>(nullptr), rows, channels_, stream);
}

template class Head<float>;
template class Head<kernels::bf16>;
#ifdef PIPETRAIN_HOST
template class Head<double>;
#endif

}  // namespace pipetrain
