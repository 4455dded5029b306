#include "kernels/cross_entropy.h"

#include "kernels/device_array.h"

namespace pipetrain::kernels {
namespace {

constexpr double scale_value = 0.125;

template <typename T>
struct Case {
  int rows, vocabulary, padded;
  std::vector<double> logits, targets;
  // What is expected, with bounds.
  std::vector<double> losses, loss_bound, gradient, gradient_bound;

  Case(int rows_, int vocabulary_)
      : rows(rows_), vocabulary(vocabulary_), padded((vocabulary + 127) / 128 * 128) {
    logits = random_values<T>(size_t(rows) * padded, 1, 3);
    std::mt19937 generator(2);
    for (int row = 0; row < rows; ++row) {
      targets.push_back(row % 4 == 3 ? -1 : int(generator() % vocabulary));
    }
    targets[0] = vocabulary - 1;
    const double u = roundoff<acc_t<T>>;
    for (int row = 0; row < rows; ++row) {
      double* x = logits.data() + size_t(row) * padded;
      const int target = int(targets[row]);
      double largest = -INFINITY;
      double smallest = INFINITY;
      for (int v = 0; v < vocabulary; ++v) {
        largest = std::max(largest, x[v]);
        smallest = std::min(smallest, x[v]);
      }
      double sum = 0;
      for (int v = 0; v < vocabulary; ++v) {
        sum += std::exp(x[v] - largest);
      }
      // Of each exponential, and of their sum.
      const double exp_error = u * (10 + largest - smallest);
      const double sum_error = exp_error + u * vocabulary;
      const double loss = target < 0 ? 0 : std::log(sum) + largest - x[target];
      losses.push_back(scale_value * loss);
      loss_bound.push_back(scale_value *
                           (sum_error + 4 * u * (std::abs(loss) + largest - smallest)));
      for (int v = 0; v < padded; ++v) {
        const double p = v < vocabulary && target >= 0 ? std::exp(x[v] - largest) / sum : 0;
        const double g = scale_value * (v == target && target >= 0 ? p - 1 : p);
        gradient.push_back(g);
        gradient_bound.push_back(roundoff<T> * std::abs(g) +
                                 scale_value * p * (exp_error + sum_error + 8 * u) +
                                 (v == target ? u : 0));
        if (v >= vocabulary) {
          x[v] = 1e4;  // counts as -inf
        }
      }
    }
  }
};

template <typename T>
class CrossEntropy : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropy, ElementTypes);

TYPED_TEST(CrossEntropy, LossAndGradientAreWithinRoundingOfTheReference) {
  using T = TypeParam;
  using A = acc_t<T>;
  for (const auto& [rows, vocabulary] : {std::pair(1, 8), {5, 257}, {9, 256}, {7, 1000}}) {
    const Case<T> c(rows, vocabulary);
    const DeviceArray<T> logits(c.logits);
    const DeviceArray<int> targets(c.targets);
    const DeviceArray<A> losses(rows), scale(std::vector<double>{scale_value});
    const Stream stream;
    cross_entropy(logits.get(), losses.get(), targets.get(), scale.get(), rows, vocabulary,
                  c.padded, LogitGradient::none, stream.get());
    expect_within(losses.values(), c.losses, c.loss_bound, "losses");
    EXPECT_EQ(logits.values(), rounded<T>(c.logits)) << "no gradient was asked for";
    const std::vector<char> bits = losses.bits();

    cross_entropy(logits.get(), losses.get(), targets.get(), scale.get(), rows, vocabulary,
                  c.padded, LogitGradient::replace, stream.get());
    EXPECT_EQ(losses.bits(), bits);
    expect_within(logits.values(), c.gradient, c.gradient_bound, "gradient");
  }
}

TYPED_TEST(CrossEntropy, IgnoredRowsAndPadColumnsHaveExactlyNoGradient) {
  using T = TypeParam;
  using A = acc_t<T>;
  Case<T> c(5, 257);
  c.targets[2] = -1;
  c.logits[2 * c.padded + 3] = NAN;
  const DeviceArray<T> logits(c.logits);
  const DeviceArray<int> targets(c.targets);
  const DeviceArray<A> losses(c.rows), scale(std::vector<double>{scale_value});
  const Stream stream;
  cross_entropy(logits.get(), losses.get(), targets.get(), scale.get(), c.rows, c.vocabulary,
                c.padded, LogitGradient::replace, stream.get());
  const std::vector<double> gradient = logits.values();
  for (int row = 0; row < c.rows; ++row) {
    EXPECT_EQ(losses.values()[row] == 0, c.targets[row] < 0);
    for (int v = 0; v < c.padded; ++v) {
      EXPECT_EQ(gradient[size_t(row) * c.padded + v] == 0, c.targets[row] < 0 || v >= c.vocabulary);
    }
  }
}

TYPED_TEST(CrossEntropy, NanAndInfinityReachTheLoss) {
  using T = TypeParam;
  using A = acc_t<T>;
  for (const double bad : {double(NAN), -double(NAN), double(INFINITY)}) {
    Case<T> c(3, 257);
    c.logits[size_t(c.padded) + 100] = bad;
    const DeviceArray<T> logits(c.logits);
    const DeviceArray<int> targets(c.targets);
    const DeviceArray<A> losses(c.rows), scale(std::vector<double>{scale_value});
    const Stream stream;
    cross_entropy(logits.get(), losses.get(), targets.get(), scale.get(), c.rows, c.vocabulary,
                  c.padded, LogitGradient::replace, stream.get());
    const std::vector<double> values = losses.values();
    EXPECT_FALSE(std::isfinite(values[1]));
    EXPECT_TRUE(std::isfinite(values[0]) && std::isfinite(values[2]));
    EXPECT_TRUE(std::isnan(logits.values()[c.padded]));
  }
}

template <typename A>
class SumLosses : public ::testing::Test {};
TYPED_TEST_SUITE(SumLosses, AccumulatorTypes);

TYPED_TEST(SumLosses, AddsOrReplacesAndIsEqualInEveryRun) {
  using A = TypeParam;
  for (const int rows : {1, 7, 1001}) {
    const std::vector<double> values = random_values<A>(rows, 1, 1, 5);
    double sum = 0;
    for (const double value : values) {
      sum += value;
    }
    const DeviceArray<A> losses(values), output(1);
    const Stream stream;
    sum_losses(output.get(), losses.get(), rows, Accumulate::no, stream.get());
    const double first = output.values()[0];
    EXPECT_NEAR(first, sum, rows * roundoff<A> * sum);
    sum_losses(output.get(), losses.get(), rows, Accumulate::yes, stream.get());
    EXPECT_EQ(output.values()[0], 2 * first);
  }
}

#ifdef PIPETRAIN_HOST
TEST(CrossEntropyGradient, AgreesWithFiniteDifferences) {
  const Case<double> c(3, 9);
  const DeviceArray<double> logits(c.logits), scale(std::vector<double>{scale_value});
  const DeviceArray<double> losses(c.rows), loss(1), gradient(c.logits);
  const DeviceArray<int> targets(c.targets);
  const Stream stream;
  cross_entropy(gradient.get(), losses.get(), targets.get(), scale.get(), c.rows, c.vocabulary,
                c.padded, LogitGradient::replace, stream.get());
  expect_gradient(
      logits, gradient.values(),
      [&] {
        cross_entropy(logits.get(), losses.get(), targets.get(), scale.get(), c.rows, c.vocabulary,
                      c.padded, LogitGradient::none, stream.get());
        sum_losses(loss.get(), losses.get(), c.rows, Accumulate::no, stream.get());
        return loss.values()[0];
      },
      "logits");
}
#endif

}  // namespace
}  // namespace pipetrain::kernels
