#pragma once

#include <cstddef>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/types.h"
#include "model/layout.h"
#include "pipetrain/model/stage.h"

namespace pipetrain {

// Memory that a layer's forward or backward uses and leaves behind. R = B*T rows.
template <typename T>
struct BlockScratch {
  using A = kernels::acc_t<T>;
  T* normalized[2] = {};         // (R, C) outputs of the two layer norms
  T* activated = nullptr;        // (R, 4C) output of GELU
  T* hidden_gradient = nullptr;  // (R, C) gradients of attended and normalized, one at a time
  A* mean = nullptr;             // (R)
  A* rstd = nullptr;             // (R)
  std::byte* attention = nullptr;
  A* bias_sums = nullptr;
  A* layernorm_sums = nullptr;
  // The whole backward keeps one layer's gradients here. The block outputs take turns by layer:
  // a layer writes its input's gradient while that of its output is still needed.
  T* output_gradient[2] = {};    // (R, C)
  T* middle_gradient = nullptr;  // (R, C)
  T* fc_gradient = nullptr;      // (R, 4C), unless Defer::cheap
  // One layer's values that are not kept (SlotPolicy::recompute); nullptr where they are.
  T* qkv = nullptr;          // (R, 3C)
  T* attended = nullptr;     // (R, C)
  A* log_sum_exp = nullptr;  // (B, heads, T)
  T* middle = nullptr;       // (R, C)
  T* fc = nullptr;           // (R, 4C)
};

// Memory of the head. K = head_chunk_rows() rows at a time.
template <typename T>
struct HeadScratch {
  using A = kernels::acc_t<T>;
  T* normalized = nullptr;           // (K, C)
  T* normalized_gradient = nullptr;  // (K, C)
  T* logits = nullptr;               // (K, Vp), then their gradient
  A* mean = nullptr;                 // (K)
  A* rstd = nullptr;                 // (K)
  A* layernorm_sums = nullptr;
  A* losses = nullptr;  // (R)
};

// Rows of which the logits exist at a time: a constant of the shape.
int head_chunk_rows(const MicrobatchShape& shape);

class GptWorkspace {
 public:
  GptWorkspace(const GptConfig& config, const MicrobatchShape& shape, Precision precision,
               const std::vector<StageLayers>& stages, const SlotPolicy& policy, WorkspaceUse use,
               Region& region);

  const SlotPolicy& policy() const { return policy_; }
  kernels::Matmul& matmul() { return matmul_; }
  // (R, C): what the last block writes and the head reads.
  std::byte* residual() const { return residual_; }
  // Both use the same memory: nothing in it outlives the call that put it there, but the output
  // gradient that load_output_gradient leaves for the backward or input gradient. What a workspace
  // does not hold is null.
  template <typename T>
  BlockScratch<T> block_scratch() const;
  template <typename T>
  HeadScratch<T> head_scratch() const;

 private:
  SlotPolicy policy_;
  kernels::Matmul matmul_;
  std::byte* residual_ = nullptr;
  SlotLayout block_;
  SlotLayout head_;
  std::byte* scratch_ = nullptr;
};

}  // namespace pipetrain
