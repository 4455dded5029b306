#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/types.h"
#include "model/workspace.h"
#include "pipetrain/model/parameters.h"
#include "pipetrain/model/slot_policy.h"

namespace pipetrain {

// A parameter as the kernels see it: W is the element type, or the accumulator type for layer
// norms.
template <typename W>
struct Weight {
  const W* value = nullptr;
  kernels::acc_t<W>* gradient = nullptr;
};

// Throws InternalError if the store does not hold it, or holds it in another type.
const LocalParameter& require(const ParameterStore& store, const std::string& name);
template <typename W>
Weight<W> weight(const ParameterStore& store, const std::string& name);

// The tensors of a block, in the order of computation.
enum class Tensor {
  block_input,   // (R, C)
  normalized1,   // (R, C)
  qkv,           // (R, 3C)
  attended,      // (R, C)
  middle,        // (R, C)
  normalized2,   // (R, C)
  fc,            // (R, 4C)
  activated,     // (R, 4C)
  block_output,  // (R, C)
  count
};

// Where one layer's tensors and their gradients lie for one micro-batch.
template <typename T>
struct LayerTensors {
  std::array<T*, static_cast<size_t>(Tensor::count)> values{};
  std::array<T*, static_cast<size_t>(Tensor::count)> gradients{};
  kernels::acc_t<T>* log_sum_exp = nullptr;  // (B, heads, T)

  T*& value(Tensor tensor) { return values[static_cast<size_t>(tensor)]; }
  T*& gradient(Tensor tensor) { return gradients[static_cast<size_t>(tensor)]; }
  const T* value(Tensor tensor) const { return values[static_cast<size_t>(tensor)]; }
};

// What every op of a chunk needs beside its tensors.
template <typename T>
struct OpContext {
  kernels::Matmul& matmul;
  BlockScratch<T> scratch;
  int rows = 0;
  int channels = 0;  // C
  kernels::AttentionShape attention;
  double epsilon = 0;  // of the layer norms
};

// An op of a block. Gradients of weights are added to what the store holds.
template <typename T>
class Op {
 public:
  // Whether this layer's input pass ran just before its weight pass, in the same workspace.
  enum class WeightPass { after_input_pass, alone };

  virtual ~Op() = default;
  virtual Tensor output() const = 0;
  virtual void forward(LayerTensors<T>& tensors, cudaStream_t stream) const = 0;
  // Input pass, in reverse order of the list: gradients of the inputs, of layer-norm weights, and
  // of the weights that are not deferred.
  virtual void backward_input(LayerTensors<T>& tensors, cudaStream_t stream) const = 0;
  // Weight pass, in order of the list: gradients of deferred matmul weights and biases. A layer
  // norm or GELU computes its output again here, for the ops after it.
  virtual void backward_weight(LayerTensors<T>& tensors, WeightPass pass,
                               cudaStream_t stream) const = 0;
};

// The ops of one GPT-2 block, weights bound. `context` must outlive them.
template <typename T>
std::vector<std::unique_ptr<Op<T>>> gpt_block(const ParameterStore& store, int layer,
                                              const OpContext<T>& context, Defer defer);

}  // namespace pipetrain
