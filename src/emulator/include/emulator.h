#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Controls of the emulator that CUDA does not have: for tests, and for the few places of the host
// flavour that print or set something about the emulated machine. Each setting may also be given
// by the environment variable named beside it, read at the first CUDA call. Settings are
// process-wide; set them while no work is in flight.
namespace emulator {

struct Settings {
  int devices = 8;             // PIPETRAIN_EMULATOR_DEVICES
  size_t memory_bytes = 0;     // PIPETRAIN_EMULATOR_MEMORY: of each device; 0: half the host's
  uint64_t delay_seed = 0;     // PIPETRAIN_EMULATOR_SEED: random delays of operations; 0: none
  double max_delay_us = 200;   // PIPETRAIN_EMULATOR_MAX_DELAY_US
  int delay_device = -1;       // PIPETRAIN_EMULATOR_DELAY_DEVICE: of this device alone; -1: of all
  bool one_at_a_time = false;  // PIPETRAIN_EMULATOR_ONE_AT_A_TIME: NCCL operations of a device
                               // run one by one in host launch order
  int64_t drop_wait = -1;      // PIPETRAIN_EMULATOR_DROP_WAIT: ignore the n-th cudaStreamWaitEvent
                               // (counted per device from reset_counters on); -1: none
  int drop_wait_device = 0;    // on this device
  double link_latency_us = 0;  // PIPETRAIN_EMULATOR_LATENCY_US: of each NCCL transfer
  double link_bytes_per_us = 0;  // PIPETRAIN_EMULATOR_BYTES_PER_US; 0: unlimited
  int link_device = -1;  // PIPETRAIN_EMULATOR_LINK_DEVICE: both of transfers that this device
                         // receives alone; -1: of all
};

Settings settings();
void set_settings(const Settings& settings);

// Device memory: bytes now allocated, the most since the last reset, and the number of
// allocations, copies between host and device, stream waits and matmuls since the last reset.
struct Counters {
  size_t bytes = 0;
  size_t high_water = 0;
  int64_t allocations = 0;
  int64_t host_copies = 0;
  int64_t synchronisations =
      0;  // calls in which the host waited: synchronize, free, blocking copies
  int64_t waits = 0;
  int64_t matmuls = 0;
};
Counters counters(int device);
void reset_counters(int device);

// Appends an operation that keeps the stream busy for `nanoseconds` from its own start on, as a
// kernel of that length would, and sleeps meanwhile. It ends late by the time the host takes to
// wake a sleeper; the next operation is late with it, but such delays do not add up inside one
// operation.
cudaError_t occupy(cudaStream_t stream, int64_t nanoseconds);

// Forgets the asynchronous error of a device, which CUDA cannot.
void clear_failure(int device);

// How many bytes of [pointer, pointer + bytes) no longer hold the allocation poison, in words of 4
// bytes. Only for memory of this process's devices, from an even address, and while nothing is in
// flight.
size_t touched_bytes(const void* pointer, size_t bytes);
void poison(void* pointer, size_t bytes);

}  // namespace emulator
