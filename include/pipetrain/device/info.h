#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pipetrain {

struct DeviceInfo {
  std::string name;
  bool emulated = false;  // the host flavour: nothing it does is as fast as a GPU
  size_t memory = 0;      // bytes
  int multiprocessors = 0;
  int major = 0;  // compute capability
  int minor = 0;
  std::string bus_id;  // of PCI; tells whether two ranks share a GPU
};

// 0 when CUDA finds none; device_problem() is then CUDA's reason (no driver, an old one, no GPU),
// and empty otherwise.
int device_count();
std::string device_problem();

// Makes `device` the calling thread's current device. Throws UsageError unless it exists.
void select_device(int device);

int current_device();  // of the calling thread

DeviceInfo device_info(int device);

// Versions as CUDA writes them (13010 is 13.1); the driver's is 0 without a driver.
int cuda_runtime_version();
int cuda_driver_version();

// Peak of dense bf16 matrix products in operations per second, from NVIDIA's data sheets (half of
// the figure with sparsity); 0 for a device that is not in the table.
double dense_bf16_peak_flops(std::string_view device_name);

}  // namespace pipetrain
