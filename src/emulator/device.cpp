#include "emulator/device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "emulator/block_threads.h"

namespace emulator {
namespace {

// Reads an environment variable; a value that is not a number from `least` on ends the process.
template <class T>
void read_variable(const char* name, T& value, double least = 0) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return;
  }
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (*text == '\0' || *end != '\0' || !(number >= least && number < 1e18)) {
    complain(fmt::format("{} is '{}': it must be a number from {} on", name, text, least));
    std::_Exit(2);
  }
  value = T(number);
}

Settings settings_from_environment() {
  Settings settings;
  read_variable("PIPETRAIN_EMULATOR_DEVICES", settings.devices, 1);
  read_variable("PIPETRAIN_EMULATOR_MEMORY", settings.memory_bytes);
  read_variable("PIPETRAIN_EMULATOR_SEED", settings.delay_seed);
  read_variable("PIPETRAIN_EMULATOR_MAX_DELAY_US", settings.max_delay_us);
  read_variable("PIPETRAIN_EMULATOR_DELAY_DEVICE", settings.delay_device, -1);
  read_variable("PIPETRAIN_EMULATOR_ONE_AT_A_TIME", settings.one_at_a_time);
  read_variable("PIPETRAIN_EMULATOR_DROP_WAIT", settings.drop_wait, -1);
  read_variable("PIPETRAIN_EMULATOR_DROP_WAIT_DEVICE", settings.drop_wait_device);
  read_variable("PIPETRAIN_EMULATOR_LATENCY_US", settings.link_latency_us);
  read_variable("PIPETRAIN_EMULATOR_BYTES_PER_US", settings.link_bytes_per_us);
  read_variable("PIPETRAIN_EMULATOR_LINK_DEVICE", settings.link_device, -1);
  return settings;
}

// Never destroyed: streams may still run while the process exits.
struct Machine {
  Settings settings = settings_from_environment();
  uint32_t settings_epoch = 1;
  std::deque<Device> devices;

  Machine() {
    for (int number = 0; number < kMaxDevices; ++number) {
      devices.emplace_back(number);
    }
  }
};

Machine& machine() {
  static Machine& the_machine = *new Machine;
  return the_machine;
}

constinit thread_local int thread_device = 0;

}  // namespace

Device* find_device(int number) {
  Machine& all = machine();
  const int count = all.settings.devices < kMaxDevices ? all.settings.devices : kMaxDevices;
  return number >= 0 && number < count ? &all.devices[size_t(number)] : nullptr;
}

Device& this_device() {
  return machine().devices[size_t(thread_device)];
}
int current_device() {
  return thread_device;
}

const Settings& current_settings() {
  return machine().settings;
}
uint32_t settings_epoch() {
  return machine().settings_epoch;
}
Settings settings() {
  return machine().settings;
}

void set_settings(const Settings& settings) {
  machine().settings = settings;
  ++machine().settings_epoch;
}

size_t memory_limit() {
  const size_t limit = machine().settings.memory_bytes;
  return limit != 0 ? limit : size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE)) / 2;
}

Counters counters(int number) {
  Device& device = machine().devices.at(size_t(number));
  const std::lock_guard lock(device.mutex);
  return {device.bytes,       device.high_water,       device.allocations,
          device.host_copies, device.synchronisations, device.waits,
          device.matmuls};
}

void reset_counters(int number) {
  Device& device = machine().devices.at(size_t(number));
  const std::lock_guard lock(device.mutex);
  device.high_water = device.bytes;
  device.allocations = 0;
  device.host_copies = 0;
  device.synchronisations = 0;
  device.waits = 0;
  device.matmuls = 0;
}

Turn take_turn(int number) {
  Device& device = machine().devices.at(size_t(number));
  return {&device.turns_ended, device.turns_taken.fetch_add(1, std::memory_order_relaxed)};
}

}  // namespace emulator

using emulator::Device;
using emulator::failure;
using emulator::refuse;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  while (emulator::find_device(*count) != nullptr) {
    ++*count;
  }
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (emulator::find_device(device) == nullptr) {
    return refuse(cudaErrorInvalidDevice,
                  fmt::format("cudaSetDevice: there is no device {}", device));
  }
  emulator::thread_device = device;
  return failure(device);
}

cudaError_t cudaGetDevice(int* device) {
  *device = emulator::current_device();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (emulator::find_device(device) == nullptr) {
    return refuse(cudaErrorInvalidDevice,
                  fmt::format("cudaGetDeviceProperties: there is no device {}", device));
  }
  *properties = {};
  std::strcpy(properties->name, "pipetrain host emulator");
  properties->totalGlobalMem = emulator::memory_limit();
  properties->major = 8;
  properties->minor = 0;
  properties->multiProcessorCount = 1;
  properties->maxThreadsPerBlock = int(emulator::kMaxBlockThreads);
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  const std::string id = fmt::format("0000:{:02x}:00.0", device + 1);
  if (emulator::find_device(device) == nullptr) {
    return refuse(cudaErrorInvalidDevice,
                  fmt::format("cudaDeviceGetPCIBusId: there is no device {}", device));
  }
  if (length <= int(id.size())) {
    return refuse(cudaErrorInvalidValue, "cudaDeviceGetPCIBusId: the text has no room for the id");
  }
  std::memcpy(text, id.c_str(), id.size() + 1);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Device& device = emulator::this_device();
  emulator::wait_for_device(device);
  return failure(device.number);
}
