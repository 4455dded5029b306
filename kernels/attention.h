#pragma once

#include <cstddef>

#include "kernels/matmul.h"
#include "kernels/types.h"

namespace pipetrain::kernels {

struct AttentionShape {
  int batch = 1;
  int sequence = 1;
  int heads = 1;
  int head_size = 8;

  int channels() const { return heads * head_size; }
};

// Makes the plans of all matrix products of both passes, which they otherwise make at their first
// use.
template <typename T>
void attention_plan(AttentionShape shape, Matmul& matmul);

// Causal self-attention. qkv (B*T, 3C) holds q, k, v side by side, heads inside C; output (B*T, C);
// lse (B, heads, T), the log-sum-exp of the scaled scores, is kept for the backward.
template <typename T>
void attention_forward(T* output, acc_t<T>* lse, const T* qkv, const AttentionShape& shape,
                       Matmul& matmul, std::byte* workspace, cudaStream_t stream);

// The gradients of q, k and v replace them in qkv. Scores are computed again.
template <typename T>
void attention_backward(T* qkv, const T* doutput, const acc_t<T>* lse, const AttentionShape& shape,
                        Matmul& matmul, std::byte* workspace, cudaStream_t stream);

// Of both, aligned to 256 bytes. Bounded: scores exist for a number of heads at a time that
// depends on T alone.
template <typename T>
size_t attention_workspace_bytes(const AttentionShape& shape);

}  // namespace pipetrain::kernels
