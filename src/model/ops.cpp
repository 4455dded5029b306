// The ops of a GPT-2 block (Radford et al. 2019): pre-norm, causal attention, tanh GELU.

#include "model/ops.h"

#include <fmt/format.h>

#include "kernels/bias_gelu.h"
#include "kernels/layernorm.h"
#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

namespace pipetrain {

namespace {

// output = layer norm of input. The residual goes around what follows, so its gradient, that of
// `joined`, is added to the input's.
template <typename T>
class LayerNorm final : public Op<T> {
  using A = kernels::acc_t<T>;

 public:
  LayerNorm(const OpContext<T>& context, Tensor input, Tensor output, Tensor joined,
            const Weight<A>& weight, const Weight<A>& bias)
      : context_(context),
        input_(input),
        output_(output),
        joined_(joined),
        weight_(weight),
        bias_(bias) {}

  Tensor output() const override { return output_; }

  void forward(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    kernels::layernorm_forward(tensors.value(output_), context_.scratch.mean, context_.scratch.rstd,
                               tensors.value(input_), weight_.value, bias_.value, context_.rows,
                               context_.channels, context_.epsilon, stream);
  }

  void backward_input(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    forward(tensors, stream);  // for the statistics, and for a weight pass that follows
    kernels::layernorm_backward_weight(weight_.gradient, bias_.gradient, tensors.gradient(output_),
                                       tensors.value(input_), context_.scratch.mean,
                                       context_.scratch.rstd, context_.rows, context_.channels,
                                       context_.scratch.layernorm_sums, stream);
    kernels::layernorm_backward_input(
        tensors.gradient(input_), tensors.gradient(output_), tensors.value(input_),
        context_.scratch.mean, context_.scratch.rstd, weight_.value, tensors.gradient(joined_),
        context_.rows, context_.channels, stream);
  }

  void backward_weight(LayerTensors<T>& tensors, typename Op<T>::WeightPass pass,
                       cudaStream_t stream) const override {
    if (pass == Op<T>::WeightPass::alone) {
      forward(tensors, stream);
    }
  }

 private:
  const OpContext<T>& context_;
  Tensor input_;
  Tensor output_;
  Tensor joined_;
  Weight<A> weight_;
  Weight<A> bias_;
};

// Which pass computes the gradients of weight and bias.
enum class WeightGradient { in_input_pass, in_weight_pass };

// output (R, outputs) = input (R, inputs) * weight (inputs, outputs) + bias (+ residual).
template <typename T>
class Linear final : public Op<T> {
  using A = kernels::acc_t<T>;

 public:
  Linear(const OpContext<T>& context, Tensor input, Tensor output, int inputs, int outputs,
         WeightGradient weight_gradient, const Weight<T>& weight, const Weight<T>& bias)
      : context_(context),
        input_(input),
        output_(output),
        outputs_(outputs),
        weight_gradient_(weight_gradient),
        weight_(weight),
        bias_(bias) {
    forward_shape_.m = context.rows;
    forward_shape_.n = outputs;
    forward_shape_.k = inputs;
    input_shape_.m = context.rows;
    input_shape_.n = inputs;
    input_shape_.k = outputs;
    input_shape_.transpose_b = true;
    weight_shape_.m = inputs;
    weight_shape_.n = outputs;
    weight_shape_.k = context.rows;
    weight_shape_.transpose_a = true;
    context.matmul.template plan<T, T>(forward_shape_, true);
    context.matmul.template plan<T, T>(input_shape_);
    context.matmul.template plan<A, T>(weight_shape_);
  }

  Linear(const OpContext<T>& context, Tensor input, Tensor output, Tensor residual, int inputs,
         int outputs, WeightGradient weight_gradient, const Weight<T>& weight,
         const Weight<T>& bias)
      : Linear(context, input, output, inputs, outputs, weight_gradient, weight, bias) {
    residual_ = residual;
    has_residual_ = true;
  }

  Tensor output() const override { return output_; }

  void forward(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    T* output = tensors.value(output_);
    if (has_residual_) {
      const size_t bytes =
          static_cast<size_t>(context_.rows) * static_cast<size_t>(outputs_) * sizeof(T);
      check(cudaMemcpyAsync(output, tensors.value(residual_), bytes, cudaMemcpyDeviceToDevice,
                            stream),
            "cudaMemcpyAsync");
    }
    context_.matmul.run(forward_shape_, output, tensors.value(input_), weight_.value, bias_.value,
                        A{1}, has_residual_ ? A{1} : A{0}, stream);
  }

  // The gradient of the input may take the input's place.
  void backward_input(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    if (weight_gradient_ == WeightGradient::in_input_pass) {
      add_weight_gradient(tensors, stream);
    }
    context_.matmul.run(input_shape_, tensors.gradient(input_), tensors.gradient(output_),
                        weight_.value, nullptr, A{1}, A{0}, stream);
  }

  void backward_weight(LayerTensors<T>& tensors, typename Op<T>::WeightPass,
                       cudaStream_t stream) const override {
    if (weight_gradient_ == WeightGradient::in_weight_pass) {
      add_weight_gradient(tensors, stream);
    }
  }

 private:
  void add_weight_gradient(LayerTensors<T>& tensors, cudaStream_t stream) const {
    context_.matmul.run(weight_shape_, weight_.gradient, tensors.value(input_),
                        tensors.gradient(output_), nullptr, A{1}, A{1}, stream);
    kernels::bias_backward(bias_.gradient, tensors.gradient(output_), context_.rows, outputs_,
                           context_.scratch.bias_sums, stream);
  }

  const OpContext<T>& context_;
  Tensor input_;
  Tensor output_;
  Tensor residual_{};
  bool has_residual_ = false;
  int outputs_;
  WeightGradient weight_gradient_;
  Weight<T> weight_;
  Weight<T> bias_;
  kernels::MatmulShape forward_shape_;
  kernels::MatmulShape input_shape_;
  kernels::MatmulShape weight_shape_;
};

// The gradients of q, k and v replace them.
template <typename T>
class Attention final : public Op<T> {
 public:
  explicit Attention(const OpContext<T>& context) : context_(context) {
    kernels::attention_plan<T>(context.attention, context.matmul);
  }

  Tensor output() const override { return Tensor::attended; }

  void forward(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    kernels::attention_forward(tensors.value(Tensor::attended), tensors.log_sum_exp,
                               tensors.value(Tensor::qkv), context_.attention, context_.matmul,
                               context_.scratch.attention, stream);
  }

  void backward_input(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    kernels::attention_backward(tensors.value(Tensor::qkv), tensors.gradient(Tensor::attended),
                                tensors.log_sum_exp, context_.attention, context_.matmul,
                                context_.scratch.attention, stream);
  }

  void backward_weight(LayerTensors<T>&, typename Op<T>::WeightPass, cudaStream_t) const override {}

 private:
  const OpContext<T>& context_;
};

template <typename T>
class Gelu final : public Op<T> {
 public:
  // The pass that needs the output once more, for the weights after it.
  Gelu(const OpContext<T>& context, WeightGradient weight_gradient)
      : context_(context), weight_gradient_(weight_gradient) {}

  Tensor output() const override { return Tensor::activated; }

  void forward(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    kernels::gelu_forward(tensors.value(Tensor::activated), tensors.value(Tensor::fc), elements(),
                          stream);
  }

  void backward_input(LayerTensors<T>& tensors, cudaStream_t stream) const override {
    kernels::gelu_backward(tensors.gradient(Tensor::fc), tensors.gradient(Tensor::activated),
                           tensors.value(Tensor::fc), elements(), stream);
  }

  void backward_weight(LayerTensors<T>& tensors, typename Op<T>::WeightPass,
                       cudaStream_t stream) const override {
    if (weight_gradient_ == WeightGradient::in_weight_pass) {
      forward(tensors, stream);
    }
  }

 private:
  size_t elements() const {
    return static_cast<size_t>(context_.rows) * 4 * static_cast<size_t>(context_.channels);
  }
  const OpContext<T>& context_;
  WeightGradient weight_gradient_;
};

}  // namespace

const LocalParameter& require(const ParameterStore& store, const std::string& name) {
  const LocalParameter* found = store.find(name);
  if (found == nullptr) {
    throw InternalError(fmt::format("this rank does not hold parameter {}", name));
  }
  return *found;
}

template <typename W>
Weight<W> weight(const ParameterStore& store, const std::string& name) {
  const LocalParameter& local = require(store, name);
  if (local.weight_element != sizeof(W)) {
    throw InternalError(fmt::format("parameter {} has elements of {} bytes, not {}", name,
                                    local.weight_element, sizeof(W)));
  }
  return {reinterpret_cast<const W*>(local.weight),
          reinterpret_cast<kernels::acc_t<W>*>(local.gradient)};
}

template <typename T>
std::vector<std::unique_ptr<Op<T>>> gpt_block(const ParameterStore& store, int layer,
                                              const OpContext<T>& context, Defer defer) {
  const int c = context.channels;
  constexpr WeightGradient deferred = WeightGradient::in_weight_pass;
  const WeightGradient of_projections =
      defer == Defer::all ? deferred : WeightGradient::in_input_pass;
  const auto of = [&](const char* suffix) {
    return weight<T>(store, fmt::format("h.{}.{}", layer, suffix));
  };
  const auto norm = [&](const char* suffix) {
    return weight<kernels::acc_t<T>>(store, fmt::format("h.{}.{}", layer, suffix));
  };
  std::vector<std::unique_ptr<Op<T>>> ops;
  ops.push_back(std::make_unique<LayerNorm<T>>(context, Tensor::block_input, Tensor::normalized1,
                                               Tensor::middle, norm("ln_1.weight"),
                                               norm("ln_1.bias")));
  ops.push_back(std::make_unique<Linear<T>>(context, Tensor::normalized1, Tensor::qkv, c, 3 * c,
                                            deferred, of("attn.c_attn.weight"),
                                            of("attn.c_attn.bias")));
  ops.push_back(std::make_unique<Attention<T>>(context));
  ops.push_back(std::make_unique<Linear<T>>(context, Tensor::attended, Tensor::middle,
                                            Tensor::block_input, c, c, of_projections,
                                            of("attn.c_proj.weight"), of("attn.c_proj.bias")));
  ops.push_back(std::make_unique<LayerNorm<T>>(context, Tensor::middle, Tensor::normalized2,
                                               Tensor::block_output, norm("ln_2.weight"),
                                               norm("ln_2.bias")));
  ops.push_back(std::make_unique<Linear<T>>(context, Tensor::normalized2, Tensor::fc, c, 4 * c,
                                            deferred, of("mlp.c_fc.weight"), of("mlp.c_fc.bias")));
  ops.push_back(std::make_unique<Gelu<T>>(context, of_projections));
  ops.push_back(std::make_unique<Linear<T>>(context, Tensor::activated, Tensor::block_output,
                                            Tensor::middle, 4 * c, c, of_projections,
                                            of("mlp.c_proj.weight"), of("mlp.c_proj.bias")));
  return ops;
}

template Weight<float> weight(const ParameterStore&, const std::string&);
template Weight<kernels::bf16> weight(const ParameterStore&, const std::string&);
template std::vector<std::unique_ptr<Op<float>>> gpt_block(const ParameterStore&, int,
                                                           const OpContext<float>&, Defer);
template std::vector<std::unique_ptr<Op<kernels::bf16>>> gpt_block(const ParameterStore&, int,
                                                                   const OpContext<kernels::bf16>&,
                                                                   Defer);
#ifdef PIPETRAIN_HOST
template Weight<double> weight(const ParameterStore&, const std::string&);
template std::vector<std::unique_ptr<Op<double>>> gpt_block(const ParameterStore&, int,
                                                            const OpContext<double>&, Defer);
#endif

}  // namespace pipetrain
