#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/types.h"
#include "pipetrain/device/check.h"
#include "pipetrain/device/stream.h"

namespace pipetrain::kernels {

// The types that kernels exist for in this build.
#ifdef PIPETRAIN_HOST
using ElementTypes = ::testing::Types<float, bf16, double>;
using AccumulatorTypes = ::testing::Types<float, double>;
#else
using ElementTypes = ::testing::Types<float, bf16>;
using AccumulatorTypes = ::testing::Types<float>;
#endif

// Unit roundoff.
template <typename T>
constexpr double roundoff = 0x1p-24;
template <>
constexpr double roundoff<bf16> = 0x1p-8;
template <>
constexpr double roundoff<double> = 0x1p-53;

template <typename T>
double to_double(T value) {
  return double(acc_t<T>(value));
}
template <>
inline double to_double(int value) {
  return value;
}
template <typename T>
T from_double(double value) {
  return T(acc_t<T>(value));
}
template <>
inline int from_double(double value) {
  return int(value);
}

// An array in device memory between guard bytes, which must be intact when it is destroyed.
template <typename T>
class DeviceArray {
 public:
  // Holds NaN (int: garbage) at first.
  explicit DeviceArray(size_t count) : count_(count) {
    check(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes() + 2 * guard), "cudaMalloc");
    check(cudaMemset(memory_, guard_byte, bytes() + 2 * guard), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  explicit DeviceArray(const std::vector<double>& values) : DeviceArray(values.size()) {
    upload(values);
  }
  ~DeviceArray() {
    EXPECT_TRUE(guards_are_intact()) << "written out of bounds of " << count_ << " elements";
    cudaFree(memory_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return reinterpret_cast<T*>(memory_ + guard); }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

  void upload(const std::vector<double>& values) const {
    std::vector<T> rounded(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      rounded[i] = from_double<T>(values[i]);
    }
    check(cudaMemcpy(get(), rounded.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  // Waits for the device.
  std::vector<double> values() const {
    const std::vector<T> copy = raw<T>(get(), count_);
    std::vector<double> result(count_);
    for (size_t i = 0; i < count_; ++i) {
      result[i] = to_double(copy[i]);
    }
    return result;
  }
  std::vector<char> bits() const {
    return raw<char>(reinterpret_cast<const char*>(get()), bytes());
  }

 private:
  static constexpr size_t guard = 256;
  static constexpr int guard_byte = 0xff;

  template <typename U>
  static std::vector<U> raw(const U* from, size_t count) {
    std::vector<U> copy(count);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemcpy(copy.data(), from, count * sizeof(U), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return copy;
  }
  bool guards_are_intact() const {
    const std::vector<char> front = raw(memory_, guard);
    const std::vector<char> back = raw(memory_ + guard + bytes(), guard);
    const std::vector<char> expected(guard, char(guard_byte));
    return front == expected && back == expected;
  }

  char* memory_ = nullptr;
  size_t count_;
};

// Values as they are after rounding to T, so that a reference starts from what the kernel sees.
template <typename T>
std::vector<double> rounded(std::vector<double> values) {
  for (double& value : values) {
    value = to_double(from_double<T>(value));
  }
  return values;
}

template <typename T>
std::vector<double> random_values(size_t count, unsigned seed, double scale = 1,
                                  double offset = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(offset, scale);
  std::vector<double> values(count);
  for (double& value : values) {
    value = normal(generator);
  }
  return rounded<T>(std::move(values));
}

// |actual - expected| <= bound, element by element; tells the worst one. NaN is never close.
inline void expect_within(const std::vector<double>& actual, const std::vector<double>& expected,
                          const std::vector<double>& bound, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  ASSERT_EQ(actual.size(), bound.size()) << what;
  size_t worst = 0;
  double worst_ratio = -1;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    const double ratio = error == 0 ? 0 : error / bound[i];
    if (!(ratio <= worst_ratio)) {
      worst = i;
      worst_ratio = std::isnan(ratio) ? INFINITY : ratio;
    }
  }
  EXPECT_LE(worst_ratio, 1) << what << "[" << worst << "] is " << actual[worst] << ", expected "
                            << expected[worst] << " within " << bound[worst];
}

// The magnitudes of values, times a factor.
inline std::vector<double> scaled(std::vector<double> values, double factor) {
  for (double& value : values) {
    value = std::abs(value) * factor;
  }
  return values;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// Compares the gradient of loss() with central differences over the elements of x; in fp64.
template <typename Loss>
void expect_gradient(const DeviceArray<double>& x, const std::vector<double>& gradient, Loss loss,
                     const std::string& what) {
  constexpr double step = 1e-5;
  std::vector<double> values = x.values();
  ASSERT_EQ(values.size(), gradient.size()) << what;
  const auto loss_at = [&](size_t i, double value) {
    const double kept = values[i];
    values[i] = value;
    x.upload(values);
    values[i] = kept;
    return loss();
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const double slope = (loss_at(i, values[i] + step) - loss_at(i, values[i] - step)) / (2 * step);
    EXPECT_NEAR(slope, gradient[i], 1e-6 * std::max(1.0, std::abs(gradient[i])))
        << what << "[" << i << "]";
  }
  x.upload(values);
}

}  // namespace pipetrain::kernels
