#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "emulator/progress.h"

namespace emulator {

// One cudaEventRecord. Every record has its own, so that a wait sees exactly what came before the
// record it is for and nothing of a later one. Reused when nobody uses it any more; never freed
// while an operation may touch it.
struct Record {
  Progress done;
  std::atomic<int64_t> nanoseconds{0};
  std::atomic<int> users{0};  // the event, the operation that records, those that wait

  // For operations: the last access. Releases but does not acquire, as all of Progress.
  void leave() { users.fetch_sub(1, std::memory_order_release); }
};

}  // namespace emulator

struct CUevent_st {
  CUevent_st(int device_number, unsigned event_flags) : device(device_number), flags(event_flags) {}

  const int device;
  const unsigned flags;
  std::mutex mutex;
  emulator::Record* last = nullptr;  // null: never recorded
};
