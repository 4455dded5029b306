#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <vector>

#include "kernels/types.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/train/weights.h"

namespace pipetrain {

// Accumulator-typed device memory as doubles. Both wait for the device.
inline std::vector<double> device_values(const std::byte* data, size_t count, Precision precision) {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  if (precision == Precision::fp64) {
    std::vector<double> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), data, count * 8, cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
  std::vector<float> values(count);
  EXPECT_EQ(cudaMemcpy(values.data(), data, count * 4, cudaMemcpyDeviceToHost), cudaSuccess);
  return {values.begin(), values.end()};
}

inline void set_device_values(std::byte* to, const std::vector<double>& values,
                              Precision precision) {
  const std::vector<float> narrow(values.begin(), values.end());
  const void* from = precision == Precision::fp64 ? static_cast<const void*>(values.data())
                                                  : static_cast<const void*>(narrow.data());
  EXPECT_EQ(
      cudaMemcpy(to, from, values.size() * accumulator_bytes(precision), cudaMemcpyHostToDevice),
      cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

inline std::vector<double> device_bf16_values(const std::byte* data, size_t count) {
  std::vector<kernels::bf16> values(count);
  EXPECT_EQ(cudaMemcpy(values.data(), data, count * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  std::vector<double> result;
  for (const kernels::bf16 value : values) {
    result.push_back(double(float(value)));
  }
  return result;
}

// A ParameterStore with its memory.
class StoreHolder {
 public:
  StoreHolder(const GptConfig& config, const std::vector<StageLayers>& stages, Precision precision)
      : bytes_(ParameterStore::bytes(config, stages, precision)),
        weights_(bytes_.weights),
        gradients_(bytes_.gradients),
        optimizer_(bytes_.optimizer),
        regions_{Region(weights_), Region(gradients_), Region(optimizer_)},
        store_(config, stages, precision, regions_[0], regions_[1], regions_[2]) {}

  const ParameterStore& store() const { return store_; }
  std::span<std::byte> gradients() const { return {gradients_.data(), gradients_.bytes()}; }

 private:
  ParameterStore::Bytes bytes_;
  Buffer weights_;
  Buffer gradients_;
  Buffer optimizer_;
  Region regions_[3];
  ParameterStore store_;
};

}  // namespace pipetrain
