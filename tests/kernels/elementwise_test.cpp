#include "kernels/elementwise.h"

#include "kernels/device_array.h"
#include "pipetrain/error.h"

namespace pipetrain::kernels {
namespace {

template <typename T>
class Elementwise : public ::testing::Test {};
TYPED_TEST_SUITE(Elementwise, ElementTypes);

TYPED_TEST(Elementwise, ResidualIsTheSumRoundedOnce) {
  using T = TypeParam;
  for (const size_t n : {8, 8200}) {
    const std::vector<double> a_values = random_values<T>(n, 1);
    const std::vector<double> b_values = random_values<T>(n, 2);
    std::vector<double> sum(n);
    for (size_t i = 0; i < n; ++i) {
      sum[i] = to_double(from_double<T>(a_values[i] + b_values[i]));
    }
    const DeviceArray<T> a(a_values), b(b_values), output(n);
    const Stream stream;
    residual_add(output.get(), a.get(), b.get(), n, stream.get());
    EXPECT_EQ(output.values(), sum);
    residual_add(b.get(), a.get(), b.get(), n, stream.get());
    EXPECT_EQ(b.values(), sum) << "in place of b";
    residual_add(a.get(), a.get(), DeviceArray<T>(b_values).get(), n, stream.get());
    EXPECT_EQ(a.values(), sum) << "in place of a";
  }
}

TYPED_TEST(Elementwise, ConvertRoundsToNearestEvenAndKeepsNanAndInfinity) {
  using T = TypeParam;
  using A = acc_t<T>;
  std::vector<double> values = random_values<A>(4104, 1);
  const std::vector<double> special = {1 + 0x1p-8, 1 + 0x3p-8, INFINITY, -INFINITY,
                                       NAN,        -0.,        3.4e38,   0x1p-149};
  std::copy(special.begin(), special.end(), values.begin());
  const DeviceArray<A> x(values);
  const DeviceArray<T> y(values.size());
  const Stream stream;
  convert(y.get(), x.get(), values.size(), stream.get());
  const std::vector<double> result = y.values();
  const std::vector<double> expected = rounded<T>(values);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(result[i] == expected[i] || (std::isnan(result[i]) && std::isnan(values[i])))
        << values[i] << " became " << result[i];
  }
  if (std::is_same_v<T, bf16>) {  // halfway, to even
    EXPECT_EQ(result[0], 1);
    EXPECT_EQ(result[1], 1 + 0x1p-6);
  }
}

TYPED_TEST(Elementwise, CountsThatAreNoMultipleOf8AreRefused) {
  using T = TypeParam;
  const DeviceArray<T> x(16);
  const Stream stream;
  EXPECT_THROW(residual_add(x.get(), x.get(), x.get(), 12, stream.get()), InternalError);
  EXPECT_NO_THROW(residual_add(x.get(), x.get(), x.get(), 0, stream.get()));
}

TEST(Elementwise, AddAndZero) {
  const std::vector<double> y_values = random_values<float>(1032, 1);
  const std::vector<double> x_values = random_values<float>(1032, 2);
  const DeviceArray<float> y(y_values), x(x_values);
  const Stream stream;
  add(y.get(), x.get(), y_values.size(), stream.get());
  const std::vector<double> result = y.values();
  for (size_t i = 0; i < y_values.size(); ++i) {
    EXPECT_EQ(result[i], float(y_values[i]) + float(x_values[i]));
  }
  zero(y.get(), y.bytes(), stream.get());
  EXPECT_EQ(y.values(), std::vector<double>(y_values.size(), 0.));
}

}  // namespace
}  // namespace pipetrain::kernels
