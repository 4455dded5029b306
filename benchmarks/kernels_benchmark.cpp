// Bytes per second of each kernel (what it reads and writes once) and flops per second of matrix
// products, at the sizes of a small GPT: 8 sequences of 256 tokens, 384 channels, 6 heads.

#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bias_gelu.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layernorm.h"
#include "kernels/matmul.h"
#include "kernels/sum_of_squares.h"
#include "pipetrain/device/check.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"

namespace pipetrain::kernels {
namespace {

constexpr int batch = 8;
constexpr int sequence = 256;
constexpr int rows = batch * sequence;
constexpr int channels = 384;
constexpr int heads = 6;
constexpr int vocabulary = 8192;
constexpr size_t n = size_t(rows) * channels;

// Device memory with values in [0, 1).
template <typename T>
class Values {
 public:
  explicit Values(size_t count) : buffer_(count * sizeof(T)) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = T(float(i * 7919 % 1024) / 1024);
    }
    check(cudaMemcpy(get(), values.data(), count * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  T* get() const { return reinterpret_cast<T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

template <typename F>
void measure(benchmark::State& state, size_t bytes, F submit) {
  const Stream stream;
  for (auto _ : state) {
    submit(stream.get());
    stream.synchronize();
  }
  state.SetBytesProcessed(int64_t(state.iterations() * bytes));
}

template <typename T>
void layernorm_forward_of(benchmark::State& state) {
  const Values<T> x(n), y(n);
  const Values<float> mean(rows), rstd(rows), weight(channels), bias(channels);
  measure(state, 2 * n * sizeof(T), [&](cudaStream_t stream) {
    layernorm_forward(y.get(), mean.get(), rstd.get(), x.get(), weight.get(), bias.get(), rows,
                      channels, 1e-5, stream);
  });
}

template <typename T>
void layernorm_backward_of(benchmark::State& state) {
  const Values<T> x(n), dy(n), dx(n);
  const Values<float> weight(channels), mean(rows), rstd(rows), dweight(channels), dbias(channels);
  const Values<float> workspace(layernorm_workspace_bytes<T>(rows, channels) / sizeof(float));
  measure(state, 6 * n * sizeof(T), [&](cudaStream_t stream) {
    layernorm_backward_weight(dweight.get(), dbias.get(), dy.get(), x.get(), mean.get(), rstd.get(),
                              rows, channels, workspace.get(), stream);
    layernorm_backward_input(dx.get(), dy.get(), x.get(), mean.get(), rstd.get(), weight.get(),
                             dx.get(), rows, channels, stream);
  });
}

template <typename T>
void gelu_forward_of(benchmark::State& state) {
  const Values<T> x(4 * n), y(4 * n);
  measure(state, 8 * n * sizeof(T),
          [&](cudaStream_t stream) { gelu_forward(y.get(), x.get(), 4 * n, stream); });
}

template <typename T>
void gelu_backward_of(benchmark::State& state) {
  const Values<T> x(4 * n), dy(4 * n);
  measure(state, 12 * n * sizeof(T),
          [&](cudaStream_t stream) { gelu_backward(dy.get(), dy.get(), x.get(), 4 * n, stream); });
}

template <typename T>
void bias_backward_of(benchmark::State& state) {
  const Values<T> dy(4 * n);
  const Values<float> dbias(4 * channels);
  const Values<float> workspace(bias_workspace_bytes<T>(rows, 4 * channels) / sizeof(float));
  measure(state, 4 * n * sizeof(T), [&](cudaStream_t stream) {
    bias_backward(dbias.get(), dy.get(), rows, 4 * channels, workspace.get(), stream);
  });
}

template <typename T>
void residual_add_of(benchmark::State& state) {
  const Values<T> x(n), y(n);
  measure(state, 3 * n * sizeof(T),
          [&](cudaStream_t stream) { residual_add(y.get(), y.get(), x.get(), n, stream); });
}

template <typename T>
void embedding_of(benchmark::State& state) {
  const Values<T> wte(size_t(vocabulary) * channels), wpe(sequence * channels), output(n);
  const Values<float> dwte(size_t(vocabulary) * channels), dwpe(sequence * channels);
  const Values<int> tokens(rows);
  measure(state, n * (5 * sizeof(T) + 16), [&](cudaStream_t stream) {
    embedding_forward(output.get(), tokens.get(), wte.get(), wpe.get(), rows, sequence, channels,
                      stream);
    embedding_backward(dwte.get(), dwpe.get(), output.get(), tokens.get(), rows, sequence, channels,
                       stream);
  });
}

template <typename T>
void cross_entropy_of(benchmark::State& state) {
  constexpr int chunk = 256;
  const Values<T> logits(size_t(chunk) * vocabulary);
  const Values<float> losses(chunk), scale(1);
  const Values<int> targets(chunk);
  measure(state, 2 * size_t(chunk) * vocabulary * sizeof(T), [&](cudaStream_t stream) {
    cross_entropy(logits.get(), losses.get(), targets.get(), scale.get(), chunk, vocabulary,
                  vocabulary, LogitGradient::replace, stream);
  });
}

template <typename T>
void adamw_of(benchmark::State& state) {
  constexpr size_t count = size_t(1) << 20;
  const Values<T> weight(count);
  const Values<float> master(count), moment1(count), moment2(count), gradient(count);
  const Buffer scalars(sizeof(OptimizerScalars<float>));
  OptimizerScalars<float> values;
  values.learning_rate = 1e-3f;
  check(cudaMemcpy(scalars.data(), &values, sizeof(values), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  measure(state, count * (28 + (sizeof(T) == 2 ? 2 : 0)), [&](cudaStream_t stream) {
    adamw(sizeof(T) == 2 ? weight.get() : reinterpret_cast<T*>(master.get()), master.get(),
          moment1.get(), moment2.get(), gradient.get(), count, AdamwSettings{},
          reinterpret_cast<OptimizerScalars<float>*>(scalars.data()), stream);
  });
}

void sum_of_squares_of_float(benchmark::State& state) {
  constexpr size_t count = size_t(1) << 20;
  const Values<float> gradient(count), sums(norm_blocks(count));
  measure(state, count * sizeof(float),
          [&](cudaStream_t stream) { sum_of_squares(sums.get(), gradient.get(), count, stream); });
}

// Bytes of qkv, output and their gradients; the scores do not count.
template <typename T>
void attention_of(benchmark::State& state) {
  const AttentionShape shape{batch, sequence, heads, channels / heads};
  const Values<T> qkv(3 * n), output(n);
  const Values<float> lse(size_t(rows) * heads);
  const Buffer workspace(attention_workspace_bytes<T>(shape)),
      matmul_workspace(matmul_workspace_bytes() + 1);
  Matmul matmul(matmul_workspace.data());
  const bool backward = state.range(0) != 0;
  measure(state, (backward ? 7 : 4) * n * sizeof(T), [&](cudaStream_t stream) {
    if (backward) {
      attention_backward(qkv.get(), output.get(), lse.get(), shape, matmul, workspace.data(),
                         stream);
    } else {
      attention_forward(output.get(), lse.get(), qkv.get(), shape, matmul, workspace.data(),
                        stream);
    }
  });
}

template <typename T>
void matmul_of(benchmark::State& state) {
  const Values<T> x(n), weight(4 * channels * channels), y(4 * n), bias(4 * channels);
  const Buffer workspace(matmul_workspace_bytes() + 1);
  Matmul matmul(workspace.data());
  const MatmulShape shape{.m = rows, .n = 4 * channels, .k = channels};
  measure(state, 5 * n * sizeof(T), [&](cudaStream_t stream) {
    matmul.run(shape, y.get(), x.get(), weight.get(), bias.get(), 1, 0, stream);
  });
  state.counters["flops"] = benchmark::Counter(2. * rows * 4 * channels * channels,
                                               benchmark::Counter::kIsIterationInvariantRate);
}

#define BENCHMARK_TYPES(function)                                              \
  BENCHMARK_TEMPLATE(function, float)->MeasureProcessCPUTime()->UseRealTime(); \
  BENCHMARK_TEMPLATE(function, bf16)->MeasureProcessCPUTime()->UseRealTime();

BENCHMARK_TYPES(layernorm_forward_of)
BENCHMARK_TYPES(layernorm_backward_of)
BENCHMARK_TYPES(gelu_forward_of)
BENCHMARK_TYPES(gelu_backward_of)
BENCHMARK_TYPES(bias_backward_of)
BENCHMARK_TYPES(residual_add_of)
BENCHMARK_TYPES(embedding_of)
BENCHMARK_TYPES(cross_entropy_of)
BENCHMARK_TYPES(adamw_of)
BENCHMARK(sum_of_squares_of_float)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK_TEMPLATE(attention_of, float)->Arg(0)->Arg(1)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK_TEMPLATE(attention_of, bf16)->Arg(0)->Arg(1)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK_TYPES(matmul_of)

}  // namespace
}  // namespace pipetrain::kernels
