#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulator.h"
#include "emulator/event.h"
#include "emulator/queue.h"
#include "emulator/stream.h"

namespace emulator {

inline constexpr int kMaxDevices = 64;

// One emulated device. Only submitting threads use it: what runs on streams takes nothing from here
// but the error flag and the progress of turns.
struct Device {
  explicit Device(int device_number) : number(device_number) {}

  const int number;
  std::mutex mutex;

  // Streams in use, by number; those destroyed that still run; the default stream, once used.
  std::map<int, std::shared_ptr<CUstream_st>> streams;
  std::vector<std::shared_ptr<CUstream_st>> closing;
  std::shared_ptr<CUstream_st> default_stream;

  std::mutex copy_mutex;           // one cudaMemcpy at a time
  std::vector<std::byte> staging;  // of the cudaMemcpy that is under way on the default stream
  // Event records that no event points to; reused when no operation does either.
  std::deque<Record*> retired;

  size_t bytes = 0;
  size_t high_water = 0;
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> host_copies{0};
  std::atomic<int64_t> synchronisations{0};
  std::atomic<int64_t> waits{0};
  std::atomic<int64_t> matmuls{0};

  std::atomic<cudaError_t> error{cudaSuccess};
  Progress turns_ended;
  std::atomic<uint32_t> turns_taken{0};
};

// The device, or null if there is no such device.
Device* find_device(int number);
Device& this_device();
size_t memory_limit();
const Settings& current_settings();
// Rises with every set_settings: streams seed their generators again.
uint32_t settings_epoch();

// Waits for all work of the device, which counts as a synchronisation.
void wait_for_device(Device& device);
// The stream on which cudaMemcpy and cudaMemset run.
CUstream_st& default_stream(Device& device);

// Gives up `old` (may be null) and takes a record for a new use, with `users` users.
Record* replace_record(Device& device, Record* old, int users);

}  // namespace emulator
