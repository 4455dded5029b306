// Causal multi-head self-attention (Vaswani et al. 2017): output = softmax(q k^T / sqrt(head size))
// v. Matrix products are batched over heads; the softmax is one warp per row of scores.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/math.h"
#include "kernels/parallel.h"
#include "pipetrain/device/memory.h"

namespace pipetrain::kernels {
namespace {

// ---- kernels

// probabilities = softmax of scores over columns 0..row, 0 in the columns after; both
// (heads, sequence, stride). lse (heads, sequence). Scores are overwritten.
template <typename T>
__global__ void softmax_forward_kernel(T* probabilities, acc_t<T>* lse, acc_t<T>* scores, int heads,
                                       int sequence, int stride) {
  using A = acc_t<T>;
  for (int row : rows_of_this_warp(heads * sequence)) {
    const int count = row % sequence + 1;
    A* row_scores = scores + size_t(row) * stride;
    T* row_probabilities = probabilities + size_t(row) * stride;

    auto largest = ordered(-std::numeric_limits<A>::infinity());
    for (int c : lanes(count)) {
      const auto score = ordered(row_scores[c]);
      largest = score > largest ? score : largest;
    }
    const A row_max = from_ordered(warp_max(largest));
    A sum = 0;
    for (int c : lanes(count)) {
      row_scores[c] = exponential(row_scores[c] - row_max);
      sum += row_scores[c];
    }
    sum = warp_sum(sum);
    const A factor = A(1) / sum;
    for (int c : lanes(count)) {
      row_probabilities[c] = T(row_scores[c] * factor);
    }
    for (int c : lanes(stride - count)) {
      row_probabilities[count + c] = T(A(0));
    }
    if (lane() == 0) {
      lse[row] = row_max + std::log(sum);
    }
  }
}

// probabilities p = exp(scores - lse) and dscores = p * (dp - sum over the row of p * dp), 0 after
// the diagonal; all (heads, sequence, stride). Scores are overwritten.
template <typename T>
__global__ void softmax_backward_kernel(T* probabilities, T* dscores, acc_t<T>* scores,
                                        const acc_t<T>* dprobabilities, const acc_t<T>* lse,
                                        int heads, int sequence, int stride) {
  using A = acc_t<T>;
  for (int row : rows_of_this_warp(heads * sequence)) {
    const int count = row % sequence + 1;
    const size_t start = size_t(row) * stride;
    A* p = scores + start;
    const A* dp = dprobabilities + start;
    const A row_lse = lse[row];

    A sum = 0;
    for (int c : lanes(count)) {
      p[c] = exponential(p[c] - row_lse);
      probabilities[start + c] = T(p[c]);
      sum += p[c] * dp[c];
    }
    sum = warp_sum(sum);
    for (int c : lanes(count)) {
      dscores[start + c] = T(p[c] * (dp[c] - sum));
    }
    for (int c : lanes(stride - count)) {
      probabilities[start + count + c] = T(A(0));
      dscores[start + count + c] = T(A(0));
    }
  }
}

// to (rows, columns) = from, with strides from row to row.
template <typename T>
__global__ void copy_rows_kernel(T* to, int to_stride, const T* from, int from_stride, int rows,
                                 int columns) {
  constexpr int size = pack_size<T>;
  for (int row : rows_of_this_warp(rows)) {
    for (int c : lanes<size>(columns)) {
      store(to + size_t(row) * to_stride + c, load<size>(from + size_t(row) * from_stride + c));
    }
  }
}

// ---- the matrix products of a group of heads

// Scores of a group lie (heads, T, stride), rows padded to a multiple of 8 elements for their
// alignment.
struct Group {
  int heads;
  int sequence;
  int head_size;
  int channels;

  int stride() const { return divide_up(sequence, 8) * 8; }
  size_t scores() const { return size_t(heads) * sequence * stride(); }
  MatmulShape batched(MatmulShape shape, int64_t stride_a, int64_t stride_b,
                      int64_t stride_c) const {
    shape.batch = heads;
    shape.stride_a = stride_a;
    shape.stride_b = stride_b;
    shape.stride_c = stride_c;
    return shape;
  }

  // (T, T) = x y^T of activations x, y of which rows are that far apart.
  MatmulShape to_scores(int x_stride, int y_stride) const {
    return batched({.m = sequence,
                    .n = sequence,
                    .k = head_size,
                    .transpose_b = true,
                    .lda = x_stride,
                    .ldb = y_stride,
                    .ldc = stride()},
                   head_size, head_size, int64_t(sequence) * stride());
  }
  // (T, head_size) = scores x or scores^T x.
  MatmulShape from_scores(bool transposed, int x_stride, int output_stride) const {
    return batched({.m = sequence,
                    .n = head_size,
                    .k = sequence,
                    .transpose_a = transposed,
                    .lda = stride(),
                    .ldb = x_stride,
                    .ldc = output_stride},
                   int64_t(sequence) * stride(), head_size, head_size);
  }
};

// Scores of so many heads exist at a time.
int heads_at_a_time(const AttentionShape& shape) {
  constexpr size_t max_scores = size_t(1) << 22;
  const size_t scores = Group{1, shape.sequence, shape.head_size, 0}.scores();
  return int(std::clamp(max_scores / scores, size_t(1), size_t(shape.heads)));
}

template <typename F>
void for_each_group(const AttentionShape& shape, F f) {
  const int heads = heads_at_a_time(shape);
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int first = 0; first < shape.heads; first += heads) {
      f(batch, first,
        Group{std::min(heads, shape.heads - first), shape.sequence, shape.head_size,
              shape.channels()});
    }
  }
}

// Pieces of the workspace; the forward uses the first two.
template <typename T>
struct Workspace {
  acc_t<T>* scores;
  T* probabilities;
  acc_t<T>* dprobabilities;
  T* dscores;
  T* dq;

  Workspace(const AttentionShape& shape, std::byte* data) {
    const Group group{heads_at_a_time(shape), shape.sequence, shape.head_size, shape.channels()};
    const auto take = [&]<typename U>(U*& piece, size_t count) {
      piece = reinterpret_cast<U*>(data);
      data += aligned(count * sizeof(U));
    };
    std::byte* const start = data;
    take(scores, group.scores());
    take(probabilities, group.scores());
    take(dprobabilities, group.scores());
    take(dscores, group.scores());
    take(dq, size_t(group.heads) * group.sequence * group.head_size);
    bytes = size_t(data - start);
  }
  size_t bytes;
};

template <typename T>
acc_t<T> score_scale(const AttentionShape& shape) {
  return acc_t<T>(1 / std::sqrt(double(shape.head_size)));
}

}  // namespace

// ---- launchers

template <typename T>
void attention_plan(AttentionShape shape, Matmul& matmul) {
  using A = acc_t<T>;
  check_multiple_of_8(shape.head_size, "the head size");
  const int channels = shape.channels();
  shape.batch = 1;
  for_each_group(shape, [&](int, int, const Group& group) {
    matmul.plan<A, T>(group.to_scores(3 * channels, 3 * channels));
    matmul.plan<T, T>(group.from_scores(false, 3 * channels, channels));
    matmul.plan<A, T>(group.to_scores(channels, 3 * channels));
    matmul.plan<T, T>(group.from_scores(true, channels, 3 * channels));
    matmul.plan<T, T>(group.from_scores(false, 3 * channels, group.heads * group.head_size));
    matmul.plan<T, T>(group.from_scores(true, 3 * channels, 3 * channels));
  });
}

template <typename T>
void attention_forward(T* output, acc_t<T>* lse, const T* qkv, const AttentionShape& shape,
                       Matmul& matmul, std::byte* workspace, cudaStream_t stream) {
  using A = acc_t<T>;
  check_multiple_of_8(shape.head_size, "the head size");
  const Workspace<T> work(shape, workspace);
  const int channels = shape.channels();
  for_each_group(shape, [&](int batch, int first_head, const Group& group) {
    const T* q = qkv + size_t(batch) * shape.sequence * 3 * channels + first_head * shape.head_size;
    const T* k = q + channels;
    const T* v = k + channels;
    T* group_output =
        output + size_t(batch) * shape.sequence * channels + first_head * shape.head_size;
    A* group_lse = lse + (size_t(batch) * shape.heads + first_head) * shape.sequence;

    matmul.run(group.to_scores(3 * channels, 3 * channels), work.scores, q, k, nullptr,
               score_scale<T>(shape), A(0), stream);
    launch(softmax_forward_kernel<T>, size_t(group.heads) * group.sequence, stream,
           work.probabilities, group_lse, work.scores, group.heads, group.sequence, group.stride());
    matmul.run(group.from_scores(false, 3 * channels, channels), group_output, work.probabilities,
               v, nullptr, A(1), A(0), stream);
  });
}

template <typename T>
void attention_backward(T* qkv, const T* doutput, const acc_t<T>* lse, const AttentionShape& shape,
                        Matmul& matmul, std::byte* workspace, cudaStream_t stream) {
  using A = acc_t<T>;
  check_multiple_of_8(shape.head_size, "the head size");
  const Workspace<T> work(shape, workspace);
  const int channels = shape.channels();
  const A scale = score_scale<T>(shape);
  for_each_group(shape, [&](int batch, int first_head, const Group& group) {
    const int width = group.heads * group.head_size;
    T* q = qkv + size_t(batch) * shape.sequence * 3 * channels + first_head * shape.head_size;
    T* k = q + channels;
    T* v = k + channels;
    const T* group_doutput =
        doutput + size_t(batch) * shape.sequence * channels + first_head * shape.head_size;
    const A* group_lse = lse + (size_t(batch) * shape.heads + first_head) * shape.sequence;

    matmul.run(group.to_scores(3 * channels, 3 * channels), work.scores, q, k, nullptr, scale, A(0),
               stream);
    matmul.run(group.to_scores(channels, 3 * channels), work.dprobabilities, group_doutput, v,
               nullptr, A(1), A(0), stream);
    launch(softmax_backward_kernel<T>, size_t(group.heads) * group.sequence, stream,
           work.probabilities, work.dscores, work.scores, work.dprobabilities, group_lse,
           group.heads, group.sequence, group.stride());
    matmul.run(group.from_scores(true, channels, 3 * channels), v, work.probabilities,
               group_doutput, nullptr, A(1), A(0), stream);
    matmul.run(group.from_scores(false, 3 * channels, width), work.dq, work.dscores, k, nullptr,
               scale, A(0), stream);
    matmul.run(group.from_scores(true, 3 * channels, 3 * channels), k, work.dscores, q, nullptr,
               scale, A(0), stream);
    launch(copy_rows_kernel<T>, group.sequence, stream, q, 3 * channels, work.dq, width,
           group.sequence, width);
  });
}

template <typename T>
size_t attention_workspace_bytes(const AttentionShape& shape) {
  return Workspace<T>(shape, nullptr).bytes;
}

#define INSTANTIATE(T)                                                                            \
  template void attention_plan<T>(AttentionShape, Matmul&);                                       \
  template void attention_forward(T*, acc_t<T>*, const T*, const AttentionShape&, Matmul&,        \
                                  std::byte*, cudaStream_t);                                      \
  template void attention_backward(T*, const T*, const acc_t<T>*, const AttentionShape&, Matmul&, \
                                   std::byte*, cudaStream_t);                                     \
  template size_t attention_workspace_bytes<T>(const AttentionShape&);
INSTANTIATE(float)
INSTANTIATE(bf16)
#ifdef PIPETRAIN_HOST
INSTANTIATE(double)
#endif

}  // namespace pipetrain::kernels
