#include "kernels/layernorm.h"

#include "kernels/device_array.h"

namespace pipetrain::kernels {
namespace {

constexpr double epsilon = 1e-5;

struct Reference {
  std::vector<double> mean, rstd, normalised, y, y_bound;
};

// Bounds: a sum of C terms is off by at most C roundoffs of the sum of their magnitudes.
template <typename T>
Reference reference(const std::vector<double>& x, const std::vector<double>& weight,
                    const std::vector<double>& bias, int rows) {
  const size_t channels = weight.size();
  const double u = roundoff<acc_t<T>>;
  Reference r;
  for (int row = 0; row < rows; ++row) {
    const double* x_row = x.data() + row * channels;
    double mean = 0;
    double magnitude = 0;
    for (size_t c = 0; c < channels; ++c) {
      mean += x_row[c] / double(channels);
      magnitude += std::abs(x_row[c]) / double(channels);
    }
    double variance = 0;
    for (size_t c = 0; c < channels; ++c) {
      variance += (x_row[c] - mean) * (x_row[c] - mean) / double(channels);
    }
    const double rstd = 1 / std::sqrt(variance + epsilon);
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    for (size_t c = 0; c < channels; ++c) {
      const double normalised = (x_row[c] - mean) * rstd;
      const double y = normalised * weight[c] + bias[c];
      const double normalised_error =
          u * (double(channels) + 8) * (rstd * magnitude + std::abs(normalised));
      r.normalised.push_back(normalised);
      r.y.push_back(y);
      r.y_bound.push_back(roundoff<T> * std::abs(y) + std::abs(weight[c]) * normalised_error +
                          4 * u * (std::abs(bias[c]) + std::abs(normalised * weight[c])));
    }
  }
  return r;
}

template <typename T>
struct Case {
  int rows, channels;
  std::vector<double> x, dy, weight, bias;

  Case(int rows_, int channels_)
      : rows(rows_),
        channels(channels_),
        x(random_values<T>(size_t(rows) * channels, 1, 2, .5)),
        dy(random_values<T>(size_t(rows) * channels, 2)),
        weight(random_values<acc_t<T>>(channels, 3, .3, 1)),
        bias(random_values<acc_t<T>>(channels, 4)) {}
};

template <typename T>
class Layernorm : public ::testing::Test {};
TYPED_TEST_SUITE(Layernorm, ElementTypes);

TYPED_TEST(Layernorm, ForwardIsWithinRoundingOfTheReference) {
  using T = TypeParam;
  using A = acc_t<T>;
  for (const auto& [rows, channels] : {std::pair(1, 8), {3, 24}, {13, 296}, {5, 1600}}) {
    const Case<T> c(rows, channels);
    const Reference r = reference<T>(c.x, c.weight, c.bias, rows);
    const DeviceArray<T> x(c.x), y(c.x.size());
    const DeviceArray<A> weight(c.weight), bias(c.bias), mean(rows), rstd(rows);
    const Stream stream;
    layernorm_forward(y.get(), mean.get(), rstd.get(), x.get(), weight.get(), bias.get(), rows,
                      channels, epsilon, stream.get());
    expect_within(y.values(), r.y, r.y_bound, "y");
    const double relative = roundoff<A> * (2 * channels + 8);
    expect_within(mean.values(), r.mean, std::vector<double>(rows, 4 * relative), "mean");
    expect_within(rstd.values(), r.rstd, scaled(r.rstd, relative), "rstd");

    const std::vector<char> bits = y.bits();
    layernorm_forward(x.get(), mean.get(), rstd.get(), x.get(), weight.get(), bias.get(), rows,
                      channels, epsilon, stream.get());
    EXPECT_EQ(x.bits(), bits) << "in place";
  }
}

TYPED_TEST(Layernorm, BackwardIsWithinRoundingOfTheReference) {
  using T = TypeParam;
  using A = acc_t<T>;
  const double u = roundoff<A>;
  for (const auto& [rows, channels] : {std::pair(1, 8), {3, 24}, {71, 264}, {5, 1600}}) {
    const Case<T> c(rows, channels);
    const size_t n = c.x.size();
    Reference r = reference<T>(c.x, c.weight, c.bias, rows);
    const std::vector<double> residual = random_values<T>(n, 5);
    const std::vector<double> dweight_before = random_values<A>(channels, 6);
    const std::vector<double> dbias_before = random_values<A>(channels, 7);

    std::vector<double> dx(n), dx_bound(n);
    std::vector<double> dweight = dweight_before, dweight_bound(channels);
    std::vector<double> dbias = dbias_before, dbias_bound(channels);
    std::vector<double> dweight_sum(channels), dbias_sum(channels);
    for (int row = 0; row < rows; ++row) {
      double g_mean = 0, gn_mean = 0, g_magnitude = 0, gn_magnitude = 0;
      const size_t start = size_t(row) * channels;
      for (int i = 0; i < channels; ++i) {
        const double g = c.dy[start + i] * c.weight[i];
        const double gn = g * r.normalised[start + i];
        g_mean += g / channels;
        gn_mean += gn / channels;
        g_magnitude += std::abs(g) / channels;
        gn_magnitude += std::abs(gn) / channels;
      }
      for (int i = 0; i < channels; ++i) {
        const size_t e = start + i;
        const double g = c.dy[e] * c.weight[i];
        const double normalised = r.normalised[e];
        dx[e] = residual[e] + (g - g_mean - normalised * gn_mean) * r.rstd[row];
        // The mean and rstd that the kernel reads are rounded, too.
        const double size = std::abs(normalised) + r.rstd[row] * std::abs(r.mean[row]);
        dx_bound[e] = roundoff<T> * std::abs(dx[e]) + u * std::abs(residual[e]) +
                      u * (channels + 24) * r.rstd[row] *
                          (std::abs(g) + g_magnitude + (size + 2) * (gn_magnitude + g_magnitude));
        dweight_sum[i] += c.dy[e] * normalised;
        dweight_bound[i] += u * (rows + 8) * std::abs(c.dy[e]) * size;
        dbias_sum[i] += c.dy[e];
        dbias_bound[i] += u * (rows + 4) * std::abs(c.dy[e]);
      }
    }
    for (int i = 0; i < channels; ++i) {
      dweight[i] += dweight_sum[i];
      dbias[i] += dbias_sum[i];
      dweight_bound[i] += u * std::abs(dweight[i]);
      dbias_bound[i] += u * std::abs(dbias[i]);
    }

    const DeviceArray<T> x(c.x), dy(c.dy), dresidual(residual), output(n);
    const DeviceArray<acc_t<T>> weight(c.weight);
    const DeviceArray<A> mean(r.mean), rstd(r.rstd);
    const DeviceArray<A> dweight_output(dweight_before), dbias_output(dbias_before);
    const DeviceArray<A> workspace(layernorm_workspace_bytes<T>(rows, channels) / sizeof(A));
    const Stream stream;
    layernorm_backward_weight(dweight_output.get(), dbias_output.get(), dy.get(), x.get(),
                              mean.get(), rstd.get(), rows, channels, workspace.get(),
                              stream.get());
    layernorm_backward_input(output.get(), dy.get(), x.get(), mean.get(), rstd.get(), weight.get(),
                             dresidual.get(), rows, channels, stream.get());
    expect_within(output.values(), dx, dx_bound, "dx");
    expect_within(dweight_output.values(), dweight, dweight_bound, "dweight");
    expect_within(dbias_output.values(), dbias, dbias_bound, "dbias");

    const std::vector<char> bits = output.bits();
    layernorm_backward_input(dresidual.get(), dy.get(), x.get(), mean.get(), rstd.get(),
                             weight.get(), dresidual.get(), rows, channels, stream.get());
    EXPECT_EQ(dresidual.bits(), bits) << "in place of the residual's gradient";
    const DeviceArray<T> zeros(std::vector<double>(n, 0.));
    layernorm_backward_input(output.get(), dy.get(), x.get(), mean.get(), rstd.get(), weight.get(),
                             zeros.get(), rows, channels, stream.get());
    const std::vector<double> without_residual = output.values();
    layernorm_backward_input<T>(dy.get(), dy.get(), x.get(), mean.get(), rstd.get(), weight.get(),
                                nullptr, rows, channels, stream.get());
    EXPECT_EQ(dy.values(), without_residual) << "in place of dy, no residual";
  }
}

TYPED_TEST(Layernorm, WeightGradientsAreEqualBitwiseInEveryRun) {
  using T = TypeParam;
  using A = acc_t<T>;
  const int rows = 131, channels = 520;
  const Case<T> c(rows, channels);
  const Reference r = reference<T>(c.x, c.weight, c.bias, rows);
  const DeviceArray<T> x(c.x), dy(c.dy);
  const DeviceArray<A> mean(r.mean), rstd(r.rstd);
  const DeviceArray<A> workspace(layernorm_workspace_bytes<T>(rows, channels) / sizeof(A));
  const Stream stream;
  std::vector<char> bits;
  for (int run = 0; run < 4; ++run) {
    const DeviceArray<A> dweight(std::vector<double>(channels, 1.));
    const DeviceArray<A> dbias(std::vector<double>(channels, 1.));
    layernorm_backward_weight(dweight.get(), dbias.get(), dy.get(), x.get(), mean.get(), rstd.get(),
                              rows, channels, workspace.get(), stream.get());
    std::vector<char> both = dweight.bits();
    const std::vector<char> second = dbias.bits();
    both.insert(both.end(), second.begin(), second.end());
    if (run > 0) {
      EXPECT_EQ(both, bits);
    }
    bits = both;
  }
}

TYPED_TEST(Layernorm, NanStaysInItsRow) {
  using T = TypeParam;
  const int rows = 3, channels = 40;
  Case<T> c(rows, channels);
  c.x[channels + 5] = NAN;
  const DeviceArray<T> x(c.x), y(c.x.size());
  const DeviceArray<acc_t<T>> weight(c.weight), bias(c.bias), mean(rows), rstd(rows);
  const Stream stream;
  layernorm_forward(y.get(), mean.get(), rstd.get(), x.get(), weight.get(), bias.get(), rows,
                    channels, epsilon, stream.get());
  const std::vector<double> values = y.values();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(values[i]), i / channels == 1) << i;
  }
}

#ifdef PIPETRAIN_HOST
TEST(LayernormGradient, AgreesWithFiniteDifferences) {
  using T = double;
  const int rows = 3, channels = 8;
  const Case<T> c(rows, channels);
  const size_t n = c.x.size();
  const Stream stream;
  const DeviceArray<T> x(c.x), weight(c.weight), bias(c.bias), dy(c.dy), y(n), dx(n);
  const DeviceArray<T> mean(rows), rstd(rows), dweight(std::vector<double>(channels, 0.)),
      dbias(std::vector<double>(channels, 0.)),
      workspace(layernorm_workspace_bytes<T>(rows, channels) / sizeof(T));
  const auto forward = [&] {
    layernorm_forward(y.get(), mean.get(), rstd.get(), x.get(), weight.get(), bias.get(), rows,
                      channels, epsilon, stream.get());
    return dot(y.values(), c.dy);
  };
  forward();
  layernorm_backward_weight(dweight.get(), dbias.get(), dy.get(), x.get(), mean.get(), rstd.get(),
                            rows, channels, workspace.get(), stream.get());
  layernorm_backward_input<T>(dx.get(), dy.get(), x.get(), mean.get(), rstd.get(), weight.get(),
                              nullptr, rows, channels, stream.get());
  expect_gradient(x, dx.values(), forward, "dx");
  expect_gradient(weight, dweight.values(), forward, "dweight");
  expect_gradient(bias, dbias.values(), forward, "dbias");
}
#endif

}  // namespace
}  // namespace pipetrain::kernels
