#include "pipetrain/device/info.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>
#include <cctype>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

#ifdef PIPETRAIN_CUDA
constexpr bool emulated = false;
#else
constexpr bool emulated = true;
#endif

struct Peak {
  std::string_view model;
  double flops;
};

// The first entry that a name contains counts.
constexpr std::array<Peak, 6> peaks = {{
    Peak{"H100 PCIe", 756e12},
    Peak{"H100 NVL", 835e12},
    Peak{"H200 NVL", 835e12},
    Peak{"H100", 989e12},
    Peak{"H200", 989e12},
    Peak{"A100", 312e12},
}};

// Whether `name` contains `words` as whole words: "A100-SXM4-40GB" contains A100, "RTX A1000" not.
bool contains_words(std::string_view name, std::string_view words) {
  const auto is_part = [&](size_t i) {
    return i < name.size() && std::isalnum(static_cast<unsigned char>(name[i])) != 0;
  };
  for (size_t at = name.find(words); at != std::string_view::npos; at = name.find(words, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + words.size())) {
      return true;
    }
  }
  return false;
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::string device_problem() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

void select_device(int device) {
  const int count = device_count();
  if (count == 0) {
    throw UsageError(fmt::format("no GPU can be used: {}", device_problem()));
  }
  if (device < 0 || device >= count) {
    throw UsageError(
        fmt::format("device {} does not exist; there are {} (0 to {})", device, count, count - 1));
  }
  check(cudaSetDevice(device), "cudaSetDevice");
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

DeviceInfo device_info(int device) {
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::array<char, 32> bus_id = {};
  check(cudaDeviceGetPCIBusId(bus_id.data(), int(bus_id.size()), device), "cudaDeviceGetPCIBusId");
  return {.name = properties.name,
          .emulated = emulated,
          .memory = properties.totalGlobalMem,
          .multiprocessors = properties.multiProcessorCount,
          .major = properties.major,
          .minor = properties.minor,
          .bus_id = bus_id.data()};
}

int cuda_runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version;
}

int cuda_driver_version() {
  int version = 0;
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  return version;
}

double dense_bf16_peak_flops(std::string_view device_name) {
  for (const Peak& peak : peaks) {
    if (contains_words(device_name, peak.model)) {
      return peak.flops;
    }
  }
  return 0;
}

}  // namespace pipetrain
