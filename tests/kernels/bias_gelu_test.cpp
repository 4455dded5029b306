#include "kernels/bias_gelu.h"

#include "kernels/device_array.h"

namespace pipetrain::kernels {
namespace {

// gelu(x) and its slope, with bounds on the error of computing them in A: vector libraries give
// tanh within 4 units in the last place, so 8 roundoffs.
struct Gelu {
  double value, value_bound, slope, slope_bound;

  Gelu(double x, double roundoff) {
    const double k = std::sqrt(2 / M_PI);
    const double u = k * (x + 0.044715 * x * x * x);
    const double du = k * (1 + 3 * 0.044715 * x * x);
    const double t = std::tanh(u);
    const double sech2 = 1 - t * t;
    const double t_error = roundoff * (8 * std::abs(t) + 8 * std::abs(u) * sech2);
    value = x / 2 * (1 + t);
    value_bound = std::abs(x / 2) * (t_error + roundoff) + 4 * roundoff * std::abs(value);
    slope = (1 + t) / 2 + x / 2 * sech2 * du;
    slope_bound = t_error / 2 + std::abs(x / 2 * du) * (2 * t_error + 8 * roundoff) + 2 * roundoff;
  }
};

template <typename T>
class BiasGelu : public ::testing::Test {};
TYPED_TEST_SUITE(BiasGelu, ElementTypes);

TYPED_TEST(BiasGelu, GeluIsWithinRoundingOfTheReference) {
  using T = TypeParam;
  for (const size_t n : {8, 1000, 4096 + 24}) {
    std::vector<double> x_values = random_values<T>(n, 1, 2);
    x_values[0] = 0;
    x_values[1] = 30;
    x_values[2] = -30;
    x_values[3] = from_double<float>(-5.5);
    const std::vector<double> dy_values = random_values<T>(n, 2);
    std::vector<double> y(n), y_bound(n), dx(n), dx_bound(n);
    for (size_t i = 0; i < n; ++i) {
      const Gelu gelu(x_values[i], roundoff<acc_t<T>>);
      y[i] = gelu.value;
      y_bound[i] = gelu.value_bound + roundoff<T> * std::abs(y[i]);
      dx[i] = dy_values[i] * gelu.slope;
      dx_bound[i] = std::abs(dy_values[i]) * gelu.slope_bound + roundoff<T> * std::abs(dx[i]);
    }
    const DeviceArray<T> x(x_values), dy(dy_values), output(n);
    const Stream stream;
    gelu_forward(output.get(), x.get(), n, stream.get());
    expect_within(output.values(), y, y_bound, "gelu");
    const std::vector<char> y_bits = output.bits();

    gelu_backward(output.get(), dy.get(), x.get(), n, stream.get());
    expect_within(output.values(), dx, dx_bound, "dx");
    gelu_backward(dy.get(), dy.get(), x.get(), n, stream.get());
    EXPECT_EQ(dy.bits(), output.bits()) << "in place of dy";
    gelu_forward(x.get(), x.get(), n, stream.get());
    EXPECT_EQ(x.bits(), y_bits) << "in place of x";
  }
}

TYPED_TEST(BiasGelu, GeluOfNanIsNan) {
  using T = TypeParam;
  std::vector<double> values(64, 1.);
  values[13] = NAN;
  const DeviceArray<T> x(values), y(values.size());
  const Stream stream;
  gelu_forward(y.get(), x.get(), values.size(), stream.get());
  const std::vector<double> result = y.values();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(result[i]), i == 13) << i;
  }
}

TYPED_TEST(BiasGelu, BiasGradientIsTheColumnSumInEveryRun) {
  using T = TypeParam;
  using A = acc_t<T>;
  for (const auto& [rows, channels] : {std::pair(1, 8), {33, 24}, {97, 1160}}) {
    const std::vector<double> dy_values = random_values<T>(size_t(rows) * channels, 1);
    const std::vector<double> before = random_values<A>(channels, 2);
    std::vector<double> expected = before, bound = scaled(before, 1);
    for (int row = 0; row < rows; ++row) {
      for (int c = 0; c < channels; ++c) {
        expected[c] += dy_values[size_t(row) * channels + c];
        bound[c] += std::abs(dy_values[size_t(row) * channels + c]);
      }
    }
    const DeviceArray<T> dy(dy_values);
    const DeviceArray<A> workspace(bias_workspace_bytes<T>(rows, channels) / sizeof(A));
    const Stream stream;
    std::vector<char> bits;
    for (int run = 0; run < 3; ++run) {
      const DeviceArray<A> dbias(before);
      bias_backward(dbias.get(), dy.get(), rows, channels, workspace.get(), stream.get());
      expect_within(dbias.values(), expected, scaled(bound, (rows + 2) * roundoff<A>), "dbias");
      if (run > 0) {
        EXPECT_EQ(dbias.bits(), bits);
      }
      bits = dbias.bits();
    }
  }
}

#ifdef PIPETRAIN_HOST
TEST(BiasGeluGradient, AgreesWithFiniteDifferences) {
  const size_t n = 40;
  const std::vector<double> dy_values = random_values<double>(n, 2);
  const DeviceArray<double> x(random_values<double>(n, 1, 2)), dy(dy_values), y(n), dx(n);
  const Stream stream;
  gelu_backward(dx.get(), dy.get(), x.get(), n, stream.get());
  expect_gradient(
      x, dx.values(),
      [&] {
        gelu_forward(y.get(), x.get(), n, stream.get());
        return dot(y.values(), dy_values);
      },
      "dx");
}
#endif

}  // namespace
}  // namespace pipetrain::kernels
