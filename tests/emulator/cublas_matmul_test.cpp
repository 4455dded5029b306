// What cuBLASLt documents, and what it is used for here. Runs unchanged on a GPU.

#include <cstring>

#include "cublas_fixture.h"

namespace pipetrain::test {
namespace {

constexpr size_t guard = 16;  // elements past the end of D

template <class In, class Out>
class Operands {
 public:
  explicit Operands(const Product& p)
      : a(numbers<In>(size_t(p.a_rows() + p.padding) * size_t(p.a_cols()) * size_t(p.batch), 1)),
        b(numbers<In>(size_t(p.b_rows() + p.padding) * size_t(p.b_cols()) * size_t(p.batch), 2)),
        c(numbers<Out>(size_t(p.m + p.padding) * size_t(p.n) * size_t(p.batch) + guard, 3)),
        bias(numbers<Out>(size_t(p.m), 4)) {}

  std::vector<In> a, b;
  std::vector<Out> c, bias;
};

double value(double number) {
  return number;
}
double value(__nv_bfloat16 number) {
  return double(float(number));
}

// |computed - exact| <= (k + 3) u_c (sum |alpha a b| + |beta c| + |bias|) + u_out |exact|, from the
// error of a sum of k rounded products in any order, two more sums and the last rounding (Higham,
// Accuracy and Stability of Numerical Algorithms, 3.1); u_out is doubled because the value that
// is rounded last is not the exact one.
template <class In, class Out>
void expect_product(const Product& p, const Operands<In, Out>& x, const std::vector<Out>& d) {
  const int lda = p.a_rows() + p.padding, ldb = p.b_rows() + p.padding, ldd = p.m + p.padding;
  const double unit = Element<typename Element<In>::Computed>::epsilon / 2;
  double worst = 0;
  std::string worst_text;
  std::vector<bool> written(d.size());
  for (int i = 0; i < p.batch; ++i) {
    const In* a = x.a.data() + size_t(i) * size_t(lda) * size_t(p.a_cols());
    const In* b = x.b.data() + size_t(i) * size_t(ldb) * size_t(p.b_cols());
    const size_t base = size_t(i) * size_t(ldd) * size_t(p.n);
    for (int col = 0; col < p.n; ++col) {
      for (int row = 0; row < p.m; ++row) {
        long double exact = 0;
        double norm = 0;
        for (int t = 0; t < p.k; ++t) {
          const double a_value = value(a[p.transpose_a ? t + row * lda : row + t * lda]);
          const double b_value = value(b[p.transpose_b ? col + t * ldb : t + col * ldb]);
          exact += p.alpha * a_value * b_value;
          norm += std::abs(p.alpha * a_value * b_value);
        }
        const size_t at = base + size_t(row) + size_t(col) * size_t(ldd);
        written[at] = true;
        if (p.beta != 0) {
          exact += p.beta * value(x.c[at]);
          norm += std::abs(p.beta * value(x.c[at]));
        }
        if (p.bias) {
          exact += value(x.bias[size_t(row)]);
          norm += std::abs(value(x.bias[size_t(row)]));
        }
        const double bound = (p.k + 3) * unit * norm +
                             Element<Out>::epsilon * std::abs(double(exact)) +
                             std::numeric_limits<double>::min();
        const double error = double(std::abs(value(d[at]) - exact));
        if (!std::isnan(worst) && !(error / bound <= worst)) {
          worst = error / bound;
          worst_text = "row " + std::to_string(row) + ", column " + std::to_string(col) +
                       ", matrix " + std::to_string(i) + ": " + std::to_string(float(d[at])) +
                       ", exactly " + std::to_string(exact);
        }
      }
    }
  }
  EXPECT_LE(worst, 1) << p.text() << "\n" << worst_text;
  for (size_t at = 0; at < d.size(); ++at) {
    if (!written[at]) {
      ASSERT_EQ(float(d[at]), float(x.c[at])) << p.text() << ": wrote outside D, at " << at;
    }
  }
}

class CublasMatmul : public CublasLt {
 protected:
  template <class In, class Out>
  void check(const Product& p) {
    const Operands<In, Out> x(p);
    expect_product(p, x, multiply<In, Out>(p, x.a, x.b, x.c, x.bias));
  }
};

constexpr int shapes[][3] = {{1, 1, 1},   {1, 7, 33},   {16, 1, 8},   {3, 5, 1},
                             {31, 17, 9}, {64, 48, 80}, {130, 65, 77}};

TEST_F(CublasMatmul, EveryTransposeOfEveryShapeIsExactToRounding) {
  for (const auto& [m, n, k] : shapes) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Product p{m, n, k, transpose_a, transpose_b};
        check<float, float>(p);
        check<double, double>(p);
        check<__nv_bfloat16, float>(p);
        check<__nv_bfloat16, __nv_bfloat16>(p);
      }
    }
  }
}

TEST_F(CublasMatmul, AlphaScalesAndBetaAddsToC) {
  for (const bool separate_c : {false, true}) {
    for (const double beta : {1.0, -0.5}) {
      const Product p{24, 40, 16, false, true, 0.25, beta, false, separate_c, 1, 8};
      check<float, float>(p);
      check<double, double>(p);
      check<__nv_bfloat16, float>(p);
      check<__nv_bfloat16, __nv_bfloat16>(p);
    }
  }
}

TEST_F(CublasMatmul, TheBiasIsAddedToEveryColumn) {
  for (const double beta : {0.0, 1.0}) {
    const Product p{40, 24, 32, true, false, 1, beta, true};
    check<float, float>(p);
    check<__nv_bfloat16, __nv_bfloat16>(p);
  }
}

TEST_F(CublasMatmul, ABatchIsItsProductsOneByOne) {
  for (const bool transpose_a : {false, true}) {
    const Product p{16, 24, 40, transpose_a, !transpose_a, 0.5, 0, false, false, 6, 8};
    check<float, float>(p);
    check<double, double>(p);
    check<__nv_bfloat16, __nv_bfloat16>(p);
  }
}

TEST_F(CublasMatmul, LargeShapesAreExactToRounding) {
  const Product p{256, 192, 384, true, false};
  check<float, float>(p);
  check<__nv_bfloat16, __nv_bfloat16>(p);
}

TEST_F(CublasMatmul, WithBetaZeroCIsNotRead) {
  const Product p{40, 24, 32};
  Operands<float, float> x(p);
  const std::vector<float> expected = multiply<float, float>(p, x.a, x.b, x.c, x.bias);
  for (size_t i = 0; i < x.c.size() - guard; ++i) {
    x.c[i] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::vector<float> unread = multiply<float, float>(p, x.a, x.b, x.c, x.bias);
  EXPECT_EQ(unread, expected);
}

TEST_F(CublasMatmul, ANaNReachesItsRowAndNoOther) {
  const Product p{24, 16, 32};
  Operands<__nv_bfloat16, __nv_bfloat16> x(p);
  x.a[5] = __nv_bfloat16(std::numeric_limits<float>::quiet_NaN());  // row 5
  const auto d = multiply<__nv_bfloat16, __nv_bfloat16>(p, x.a, x.b, x.c, x.bias);
  for (int col = 0; col < p.n; ++col) {
    for (int row = 0; row < p.m; ++row) {
      EXPECT_EQ(std::isnan(float(d[size_t(row + col * p.m)])), row == 5) << row << ", " << col;
    }
  }
}

TEST_F(CublasMatmul, RepeatingGivesTheSameBits) {
  for (const auto& [m, n, k] : shapes) {
    const Product p{m, n, k, true, false, 1, 1};
    const Operands<float, float> x(p);
    const std::vector<float> first = multiply<float, float>(p, x.a, x.b, x.c, x.bias);
    for (int i = 0; i < 3; ++i) {
      const std::vector<float> again = multiply<float, float>(p, x.a, x.b, x.c, x.bias);
      EXPECT_EQ(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)), 0)
          << p.text();
    }
  }
}

TEST_F(CublasMatmul, StreamsKeepTheirOrder) {
  // D1 = A B, then D2 = D1 D1 on the same stream, without waiting in between.
  constexpr int size = 64;
  float* a = on_device(numbers<float>(size * size, 1));
  float* d1 = device_memory<float>(size * size);
  float* d2 = device_memory<float>(size * size);
  ok(cudaDeviceSynchronize());
  cublasLtMatmulDesc_t desc = nullptr;
  ok(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasLtMatrixLayout_t square = layout(CUDA_R_32F, size, size, size);
  const float one = 1, zero = 0;
  const auto square_of = [&](const float* x, float* y) {
    ok(cublasLtMatmul(handle_, desc, &one, x, square, x, square, &zero, y, square, y, square,
                      nullptr, nullptr, 0, stream_));
  };
  square_of(a, d1);
  square_of(d1, d2);
  const std::vector<float> result = on_host(d2, size * size);
  square_of(a, d1);
  ok(cudaStreamSynchronize(stream_));
  square_of(d1, d2);
  EXPECT_EQ(on_host(d2, size * size), result);
  ok(cublasLtMatrixLayoutDestroy(square));
  ok(cublasLtMatmulDescDestroy(desc));
}

}  // namespace
}  // namespace pipetrain::test
