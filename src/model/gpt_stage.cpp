// One chunk of a GPT-2 behind the Stage interface: layers of ops, the embedding before the first
// and the head after the last.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "kernels/embedding.h"
#include "model/dispatch.h"
#include "model/head.h"
#include "model/layout.h"
#include "model/ops.h"
#include "model/workspace.h"
#include "pipetrain/device/check.h"
#include "pipetrain/model/stage.h"

namespace pipetrain {

namespace {

// What a layer's input pass needs and no slot keeps.
std::vector<Tensor> computed_again(const SlotPolicy& policy) {
  std::vector<Tensor> tensors;
  if (policy.recompute != Recompute::none) {
    tensors = {Tensor::normalized1, Tensor::qkv, Tensor::attended};
  }
  if (policy.recompute == Recompute::full) {
    tensors.insert(tensors.end(), {Tensor::middle, Tensor::normalized2, Tensor::fc});
  }
  if (policy.defer == Defer::cheap) {
    tensors.push_back(Tensor::activated);
  }
  return tensors;
}

template <typename T>
class GptStage final : public Stage {
  using A = kernels::acc_t<T>;

 public:
  GptStage(const GptConfig& config, const MicrobatchShape& shape, Precision precision,
           const StageLayers& layers, const ParameterStore& store, const StepData& data,
           GptWorkspace& workspace);

  void load_input(std::byte* slot, const std::byte* message, const Stream& stream) override;
  void forward(int microbatch, std::byte* slot, std::byte* output, bool keep,
               const Stream& stream) override;
  void load_output_gradient(std::byte* slot, std::byte* gradient_slot, const std::byte* message,
                            const Stream& stream) override;
  void backward(int microbatch, std::byte* slot, std::byte* input_gradient,
                const Stream& stream) override;
  void backward_input(int microbatch, std::byte* slot, std::byte* gradient_slot,
                      std::byte* input_gradient, const Stream& stream) override;
  void backward_weight(int microbatch, std::byte* slot, std::byte* gradient_slot,
                       const Stream& stream) override;

 private:
  using Block = std::vector<std::unique_ptr<Op<T>>>;

  T* activation(std::byte* slot, int row, int index) const {
    return reinterpret_cast<T*>(slot + activation_layout_.offset(row, index));
  }
  T* gradient(std::byte* gradient_slot, int row, int index) const {
    return reinterpret_cast<T*>(gradient_slot + gradient_layout_.offset(row, index));
  }
  // Of the chunk's last layer or of one before it. gradient_slot == nullptr: in the workspace.
  T* output_gradient(int layer, std::byte* slot, std::byte* gradient_slot) const;
  // gradient_slot: nullptr but between I and W of a split backward; there too if it has no bytes.
  LayerTensors<T> values(int layer, std::byte* slot, std::byte* gradient_slot) const;
  LayerTensors<T> values_and_gradients(int layer, std::byte* slot, std::byte* gradient_slot,
                                       T* input_gradient) const;
  // Where the gradient of the chunk's input goes: a message, or the workspace if it embeds.
  T* input_gradient_or_scratch(std::byte* input_gradient) const;
  // What is not kept is computed again first.
  void input_pass(LayerTensors<T>& tensors, const Block& block, const Stream& stream) const;
  void weight_pass(LayerTensors<T>& tensors, const Block& block, typename Op<T>::WeightPass pass,
                   const Stream& stream) const;
  // After the input passes of all layers.
  void finish_input_gradient(int microbatch, std::byte* slot, std::byte* gradient_slot,
                             T* input_gradient, const Stream& stream) const;
  void copy(void* to, const void* from, const Stream& stream) const;
  const int* of_microbatch(const int* tokens, int microbatch) const {
    return tokens + static_cast<size_t>(microbatch) * static_cast<size_t>(context_.rows);
  }

  StageLayers layers_;
  int sequence_;
  const StepData& data_;
  size_t message_bytes_;
  SlotLayout activation_layout_;
  SlotLayout gradient_layout_;
  OpContext<T> context_;
  T* residual_;  // workspace: input of the head
  std::vector<Block> blocks_;
  Defer defer_;
  std::vector<Tensor> computed_again_;
  Weight<T> tokens_;  // wte and wpe, if the chunk embeds
  Weight<T> positions_;
  std::optional<Head<T>> head_;
};

template <typename T>
GptStage<T>::GptStage(const GptConfig& config, const MicrobatchShape& shape, Precision precision,
                      const StageLayers& layers, const ParameterStore& store, const StepData& data,
                      GptWorkspace& workspace)
    : layers_(layers),
      sequence_(shape.sequence),
      data_(data),
      message_bytes_(message_bytes(config, shape, precision)),
      activation_layout_(activation_layout(config, shape, precision, layers, workspace.policy())),
      gradient_layout_(gradient_layout(config, shape, precision, layers, workspace.policy())),
      context_{workspace.matmul(),
               workspace.block_scratch<T>(),
               shape.rows(),
               config.hidden,
               {shape.batch, shape.sequence, config.heads, config.head_size()},
               config.layernorm_epsilon},
      residual_(reinterpret_cast<T*>(workspace.residual())),
      defer_(workspace.policy().defer),
      computed_again_(computed_again(workspace.policy())) {
  for (int layer = 0; layer < layers.layers; ++layer) {
    blocks_.push_back(
        gpt_block<T>(store, layers.first_layer + layer, context_, workspace.policy().defer));
  }
  if (layers.embedding) {
    tokens_ = weight<T>(store, "wte.weight");
    positions_ = weight<T>(store, "wpe.weight");
  }
  if (layers.head) {
    head_.emplace(config, shape, store, workspace);
  }
}

// ---- where tensors lie

template <typename T>
T* GptStage<T>::output_gradient(int layer, std::byte* slot, std::byte* gradient_slot) const {
  if (layers_.head && layer + 1 >= layers_.layers) {
    return activation(slot, activation_row::hidden_gradient, 0);
  }
  return gradient_slot != nullptr && gradient_layout_.holds(gradient_row::block_output)
             ? gradient(gradient_slot, gradient_row::block_output, layer)
             : context_.scratch.output_gradient[layer % 2];
}

template <typename T>
LayerTensors<T> GptStage<T>::values(int layer, std::byte* slot, std::byte* gradient_slot) const {
  const BlockScratch<T>& scratch = context_.scratch;
  const auto kept_or_again = [&](int row, int again_row, T* in_workspace) {
    if (activation_layout_.holds(row)) {
      return activation(slot, row, layer);
    }
    return gradient_slot != nullptr && gradient_layout_.holds(again_row)
               ? gradient(gradient_slot, again_row, layer)
               : in_workspace;
  };
  LayerTensors<T> tensors;
  tensors.value(Tensor::block_input) = activation(slot, activation_row::block_input, layer);
  tensors.value(Tensor::normalized1) = scratch.normalized[0];
  tensors.value(Tensor::qkv) =
      kept_or_again(activation_row::qkv, gradient_row::qkv_again, scratch.qkv);
  tensors.value(Tensor::attended) =
      kept_or_again(activation_row::attended, gradient_row::attended_again, scratch.attended);
  tensors.value(Tensor::middle) =
      kept_or_again(activation_row::middle, gradient_row::middle_again, scratch.middle);
  tensors.value(Tensor::normalized2) = scratch.normalized[1];
  tensors.value(Tensor::fc) = kept_or_again(activation_row::fc, gradient_row::fc_again, scratch.fc);
  tensors.value(Tensor::activated) = scratch.activated;
  tensors.log_sum_exp = activation_layout_.holds(activation_row::log_sum_exp)
                            ? reinterpret_cast<A*>(slot + activation_layout_.offset(
                                                              activation_row::log_sum_exp, layer))
                            : scratch.log_sum_exp;
  return tensors;
}

template <typename T>
LayerTensors<T> GptStage<T>::values_and_gradients(int layer, std::byte* slot,
                                                  std::byte* gradient_slot,
                                                  T* input_gradient) const {
  const BlockScratch<T>& scratch = context_.scratch;
  LayerTensors<T> tensors = values(layer, slot, gradient_slot);
  const auto kept = [&](int row, T* in_workspace) {
    return gradient_slot != nullptr && gradient_layout_.holds(row)
               ? gradient(gradient_slot, row, layer)
               : in_workspace;
  };
  tensors.gradient(Tensor::block_output) = output_gradient(layer, slot, gradient_slot);
  if (defer_ == Defer::cheap) {  // in the place of the values
    tensors.gradient(Tensor::activated) = tensors.value(Tensor::activated);
    tensors.gradient(Tensor::fc) = tensors.value(Tensor::fc);
  } else {
    tensors.gradient(Tensor::activated) = kept(gradient_row::fc, scratch.fc_gradient);
    tensors.gradient(Tensor::fc) = tensors.gradient(Tensor::activated);
  }
  tensors.gradient(Tensor::normalized2) = scratch.hidden_gradient;
  tensors.gradient(Tensor::middle) = kept(gradient_row::middle, scratch.middle_gradient);
  tensors.gradient(Tensor::attended) = scratch.hidden_gradient;
  tensors.gradient(Tensor::qkv) = tensors.value(Tensor::qkv);
  tensors.gradient(Tensor::normalized1) = scratch.hidden_gradient;
  tensors.gradient(Tensor::block_input) =
      layer == 0 ? input_gradient : output_gradient(layer - 1, slot, gradient_slot);
  return tensors;
}

template <typename T>
T* GptStage<T>::input_gradient_or_scratch(std::byte* input_gradient) const {
  return layers_.embedding ? context_.scratch.output_gradient[1]  // layer 0 reads the other one
                           : reinterpret_cast<T*>(input_gradient);
}

template <typename T>
void GptStage<T>::copy(void* to, const void* from, const Stream& stream) const {
  check(cudaMemcpyAsync(to, from, message_bytes_, cudaMemcpyDeviceToDevice, stream.get()),
        "cudaMemcpyAsync");
}

// ---- forward

template <typename T>
void GptStage<T>::load_input(std::byte* slot, const std::byte* message, const Stream& stream) {
  copy(activation(slot, activation_row::block_input, 0), message, stream);
}

template <typename T>
void GptStage<T>::forward(int microbatch, std::byte* slot, std::byte* output, bool keep,
                          const Stream& stream) {
  T* input = activation(slot, activation_row::block_input, 0);
  if (layers_.embedding) {
    kernels::embedding_forward(input, of_microbatch(data_.inputs, microbatch), tokens_.value,
                               positions_.value, context_.rows, sequence_, context_.channels,
                               stream.get());
  }
  T* chunk_output = layers_.head ? residual_ : reinterpret_cast<T*>(output);
  for (int layer = 0; layer < layers_.layers; ++layer) {
    LayerTensors<T> tensors = values(layer, slot, nullptr);
    tensors.value(Tensor::block_output) =
        layer + 1 < layers_.layers ? activation(slot, activation_row::block_input, layer + 1)
                                   : chunk_output;
    for (const auto& op : blocks_[static_cast<size_t>(layer)]) {
      op->forward(tensors, stream.get());
    }
  }
  if (layers_.layers == 0) {
    copy(chunk_output, input, stream);
  }
  if (head_) {
    head_->run(residual_, of_microbatch(data_.targets, microbatch),
               reinterpret_cast<const A*>(data_.loss_scale),
               reinterpret_cast<A*>(data_.losses) + microbatch,
               keep ? activation(slot, activation_row::hidden_gradient, 0) : nullptr, stream.get());
  }
}

// ---- backward

template <typename T>
void GptStage<T>::load_output_gradient(std::byte* slot, std::byte* gradient_slot,
                                       const std::byte* message, const Stream& stream) {
  copy(output_gradient(std::max(layers_.layers - 1, 0), slot, gradient_slot), message, stream);
}

template <typename T>
void GptStage<T>::input_pass(LayerTensors<T>& tensors, const Block& block,
                             const Stream& stream) const {
  for (const auto& op : block) {
    if (std::find(computed_again_.begin(), computed_again_.end(), op->output()) !=
        computed_again_.end()) {
      op->forward(tensors, stream.get());
    }
  }
  for (auto op = block.rbegin(); op != block.rend(); ++op) {
    (*op)->backward_input(tensors, stream.get());
  }
}

template <typename T>
void GptStage<T>::weight_pass(LayerTensors<T>& tensors, const Block& block,
                              typename Op<T>::WeightPass pass, const Stream& stream) const {
  for (const auto& op : block) {
    op->backward_weight(tensors, pass, stream.get());
  }
}

template <typename T>
void GptStage<T>::finish_input_gradient(int microbatch, std::byte* slot, std::byte* gradient_slot,
                                        T* input_gradient, const Stream& stream) const {
  if (layers_.layers == 0) {
    copy(input_gradient, output_gradient(0, slot, gradient_slot), stream);
  }
  if (layers_.embedding) {
    kernels::embedding_backward(tokens_.gradient, positions_.gradient, input_gradient,
                                of_microbatch(data_.inputs, microbatch), context_.rows, sequence_,
                                context_.channels, stream.get());
  }
}

template <typename T>
void GptStage<T>::backward(int microbatch, std::byte* slot, std::byte* input_gradient,
                           const Stream& stream) {
  T* const input = input_gradient_or_scratch(input_gradient);
  for (int layer = layers_.layers - 1; layer >= 0; --layer) {
    const Block& block = blocks_[static_cast<size_t>(layer)];
    LayerTensors<T> tensors = values_and_gradients(layer, slot, nullptr, input);
    input_pass(tensors, block, stream);
    weight_pass(tensors, block, Op<T>::WeightPass::after_input_pass, stream);
  }
  finish_input_gradient(microbatch, slot, nullptr, input, stream);
}

template <typename T>
void GptStage<T>::backward_input(int microbatch, std::byte* slot, std::byte* gradient_slot,
                                 std::byte* input_gradient, const Stream& stream) {
  T* const input = input_gradient_or_scratch(input_gradient);
  for (int layer = layers_.layers - 1; layer >= 0; --layer) {
    LayerTensors<T> tensors = values_and_gradients(layer, slot, gradient_slot, input);
    input_pass(tensors, blocks_[static_cast<size_t>(layer)], stream);
  }
  finish_input_gradient(microbatch, slot, gradient_slot, input, stream);
}

template <typename T>
void GptStage<T>::backward_weight(int, std::byte* slot, std::byte* gradient_slot,
                                  const Stream& stream) {
  for (int layer = layers_.layers - 1; layer >= 0; --layer) {
    LayerTensors<T> tensors = values_and_gradients(layer, slot, gradient_slot, nullptr);
    weight_pass(tensors, blocks_[static_cast<size_t>(layer)], Op<T>::WeightPass::alone, stream);
  }
}

}  // namespace

std::unique_ptr<Stage> make_gpt_stage(const GptConfig& config, const MicrobatchShape& shape,
                                      Precision precision, const StageLayers& layers,
                                      const ParameterStore& store, const StepData& data,
                                      GptWorkspace& workspace) {
  return with_element_type(precision, [&]<typename T>() -> std::unique_ptr<Stage> {
    return std::make_unique<GptStage<T>>(config, shape, precision, layers, store, data, workspace);
  });
}

}  // namespace pipetrain
