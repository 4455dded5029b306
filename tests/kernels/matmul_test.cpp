#include "kernels/matmul.h"

#include "kernels/device_array.h"
#include "pipetrain/error.h"

namespace pipetrain::kernels {
namespace {

// A shape with explicit strides and the extents of its operands.
struct Extents {
  MatmulShape shape;
  int lda, ldb, ldc;

  explicit Extents(const MatmulShape& s)
      : shape(s),
        lda(s.lda != 0 ? s.lda : (s.transpose_a ? s.m : s.k)),
        ldb(s.ldb != 0 ? s.ldb : (s.transpose_b ? s.k : s.n)),
        ldc(s.ldc != 0 ? s.ldc : s.n) {}
  size_t a(int batch, int i, int p) const {
    return size_t(batch * shape.stride_a) +
           (shape.transpose_a ? size_t(p) * lda + i : size_t(i) * lda + p);
  }
  size_t b(int batch, int p, int j) const {
    return size_t(batch * shape.stride_b) +
           (shape.transpose_b ? size_t(j) * ldb + p : size_t(p) * ldb + j);
  }
  size_t c(int batch, int i, int j) const {
    return size_t(batch * shape.stride_c) + size_t(i) * ldc + j;
  }
  size_t a_count() const { return a(shape.batch - 1, shape.m - 1, shape.k - 1) + 1; }
  size_t b_count() const { return b(shape.batch - 1, shape.k - 1, shape.n - 1) + 1; }
  size_t c_count() const { return c(shape.batch - 1, shape.m - 1, shape.n - 1) + 1; }
};

template <typename Input, typename Output>
void check_product(Matmul& matmul, const MatmulShape& shape, double alpha, double beta,
                   bool with_bias) {
  using A = acc_t<Input>;
  const Extents extents(shape);
  const std::vector<double> a_values = random_values<Input>(extents.a_count(), 1);
  const std::vector<double> b_values = random_values<Input>(extents.b_count(), 2);
  const std::vector<double> c_values = random_values<Output>(extents.c_count(), 3);
  const std::vector<double> bias_values = random_values<Output>(shape.n, 4);
  std::vector<double> expected = c_values, bound(c_values.size());
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int i = 0; i < shape.m; ++i) {
      for (int j = 0; j < shape.n; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (int p = 0; p < shape.k; ++p) {
          const double term = a_values[extents.a(batch, i, p)] * b_values[extents.b(batch, p, j)];
          sum += term;
          magnitude += std::abs(term);
        }
        const size_t e = extents.c(batch, i, j);
        const double bias = with_bias ? bias_values[j] : 0;
        expected[e] = alpha * sum + beta * c_values[e] + bias;
        bound[e] = roundoff<A> * (shape.k + 2) * std::abs(alpha) * magnitude +
                   4 * roundoff<A> * (std::abs(beta * c_values[e]) + std::abs(bias)) +
                   roundoff<Output> * std::abs(expected[e]);
      }
    }
  }
  const DeviceArray<Input> a(a_values), b(b_values);
  const DeviceArray<Output> c(c_values), bias(bias_values);
  const Stream stream;
  matmul.run(shape, c.get(), a.get(), b.get(), with_bias ? bias.get() : nullptr, A(alpha), A(beta),
             stream.get());
  expect_within(c.values(), expected, bound, "C");
  const std::vector<char> bits = c.bits();
  c.upload(c_values);
  matmul.run(shape, c.get(), a.get(), b.get(), with_bias ? bias.get() : nullptr, A(alpha), A(beta),
             stream.get());
  EXPECT_EQ(c.bits(), bits);
}

template <typename T>
class MatmulOf : public ::testing::Test {
 protected:
  DeviceArray<char> workspace_{matmul_workspace_bytes() + 1};
  Matmul matmul_{reinterpret_cast<std::byte*>(workspace_.get())};
};
TYPED_TEST_SUITE(MatmulOf, ElementTypes);

TYPED_TEST(MatmulOf, AllTranspositionsAreRowMajor) {
  using T = TypeParam;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const MatmulShape shape{
          .m = 16, .n = 40, .k = 24, .transpose_a = transpose_a, .transpose_b = transpose_b};
      check_product<T, T>(this->matmul_, shape, 1, 0, false);
      check_product<T, T>(this->matmul_, shape, 0.5, 2, false);
    }
  }
}

TYPED_TEST(MatmulOf, BiasIsAddedToEveryRow) {
  using T = TypeParam;
  check_product<T, T>(this->matmul_, {.m = 7, .n = 48, .k = 16}, 1, 0, true);
}

TYPED_TEST(MatmulOf, WeightGradientsAccumulateInTheAccumulatorType) {
  using T = TypeParam;
  // dW (in, out) += x^T (in, rows) dy (rows, out), with an odd number of rows.
  check_product<T, acc_t<T>>(this->matmul_, {.m = 32, .n = 24, .k = 21, .transpose_a = true}, 1, 1,
                             false);
}

TYPED_TEST(MatmulOf, BatchOverHeadsReadsAndWritesInterleavedRows) {
  using T = TypeParam;
  for (const int sequence : {1, 5, 16}) {
    const int heads = 3, head_size = 8, channels = heads * head_size;
    const int stride = (sequence + 7) / 8 * 8;
    const int64_t scores = int64_t(sequence) * stride;
    check_product<T, acc_t<T>>(this->matmul_,
                               {.m = sequence,
                                .n = sequence,
                                .k = head_size,
                                .transpose_b = true,
                                .lda = 3 * channels,
                                .ldb = 3 * channels,
                                .ldc = stride,
                                .batch = heads,
                                .stride_a = head_size,
                                .stride_b = head_size,
                                .stride_c = scores},
                               0.25, 0, false);
    check_product<T, T>(this->matmul_,
                        {.m = sequence,
                         .n = head_size,
                         .k = sequence,
                         .transpose_a = true,
                         .lda = stride,
                         .ldb = 3 * channels,
                         .ldc = channels,
                         .batch = heads,
                         .stride_a = scores,
                         .stride_b = head_size,
                         .stride_c = head_size},
                        1, 0, false);
  }
}

TYPED_TEST(MatmulOf, PlansAreMadeOnceAndForValidShapesOnly) {
  using T = TypeParam;
  const MatmulShape shape{.m = 8, .n = 16, .k = 8};
  this->matmul_.template plan<T, T>(shape);
  check_product<T, T>(this->matmul_, shape, 1, 0, false);
  EXPECT_THROW((this->matmul_.template plan<T, T>({.m = 8, .n = 16, .k = 8, .lda = 4})),
               InternalError);
}

}  // namespace
}  // namespace pipetrain::kernels
