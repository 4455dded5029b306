#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "emulator/device.h"
#include "emulator/queue.h"

// The stream and event functions of the CUDA runtime.
namespace {

using emulator::Device;
using emulator::failure;
using emulator::Record;
using emulator::refuse;
using emulator::submit;

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

int64_t now_nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// The error with which a call on a stream or event returns at once, if any.
cudaError_t check_handle(const char* call, const void* handle) {
  if (handle == nullptr) {
    return refuse(
        cudaErrorInvalidResourceHandle,
        fmt::format("{}: the handle is null; the default stream is not implemented", call));
  }
  return failure(emulator::current_device());
}

// Frees the destroyed streams that have ended. The device's mutex is held.
void reap(Device& device) {
  std::erase_if(device.closing, [](const auto& stream) { return stream->idle(); });
}

// The event's last record for a new user, or null if it was never recorded.
Record* use_last_record(CUevent_st& event) {
  const std::lock_guard lock(event.mutex);
  if (event.last != nullptr) {
    event.last->users.fetch_add(1, std::memory_order_relaxed);
  }
  return event.last;
}

}  // namespace

namespace emulator {

void wait_for_device(Device& device) {
  device.synchronisations.fetch_add(1, std::memory_order_relaxed);
  std::vector<std::shared_ptr<CUstream_st>> streams;
  {
    const std::lock_guard lock(device.mutex);
    for (const auto& [number, stream] : device.streams) {
      streams.push_back(stream);
    }
    streams.insert(streams.end(), device.closing.begin(), device.closing.end());
    if (device.default_stream != nullptr) {
      streams.push_back(device.default_stream);
    }
  }
  for (const auto& stream : streams) {
    stream->wait(stream->submitted_count());
  }
}

CUstream_st& default_stream(Device& device) {
  const std::lock_guard lock(device.mutex);
  if (device.default_stream == nullptr) {
    device.default_stream = std::make_shared<CUstream_st>(device.number, -1);
  }
  return *device.default_stream;
}

Record* replace_record(Device& device, Record* old, int users) {
  const std::lock_guard lock(device.mutex);
  if (old != nullptr) {
    old->users.fetch_sub(1, std::memory_order_relaxed);
    device.retired.push_back(old);
  }
  if (users == 0) {
    return nullptr;
  }
  Record* record = nullptr;
  if (!device.retired.empty()) {
    Record* oldest = device.retired.front();
    device.retired.pop_front();
    if (oldest->users.load(std::memory_order_relaxed) == 0) {
      record = oldest;
      record->done.reset();
    } else {
      device.retired.push_back(oldest);
    }
  }
  if (record == nullptr) {
    record = new Record;
  }
  record->users.store(users, std::memory_order_relaxed);
  return record;
}

}  // namespace emulator

// ---- streams
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = kLeastPriority;
  *greatest = kGreatestPriority;
  return failure(emulator::current_device());
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, kLeastPriority);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (flags != cudaStreamNonBlocking || priority > kLeastPriority || priority < kGreatestPriority) {
    return refuse(cudaErrorInvalidValue,
                  fmt::format("cudaStreamCreate: flags {}, priority {}: only cudaStreamNonBlocking "
                              "and priorities {} to {} are implemented",
                              flags, priority, kGreatestPriority, kLeastPriority));
  }
  Device& device = emulator::this_device();
  const std::lock_guard lock(device.mutex);
  reap(device);
  int number = 0;
  while (device.streams.count(number) != 0) {
    ++number;
  }
  auto created = std::make_shared<CUstream_st>(device.number, number);
  *stream = created.get();
  device.streams.emplace(number, std::move(created));
  return failure(device.number);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t error = check_handle("cudaStreamDestroy", stream); stream == nullptr) {
    return error;
  }
  Device& device = *emulator::find_device(stream->device);
  stream->close();
  const std::lock_guard lock(device.mutex);
  device.closing.push_back(std::move(device.streams.extract(stream->number).mapped()));
  reap(device);
  return failure(device.number);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = check_handle("cudaStreamSynchronize", stream);
      error != cudaSuccess) {
    return error;
  }
  Device& device = *emulator::find_device(stream->device);
  device.synchronisations.fetch_add(1, std::memory_order_relaxed);
  stream->wait(stream->submitted_count());
  return failure(device.number);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = check_handle("cudaStreamQuery", stream); error != cudaSuccess) {
    return error;
  }
  return stream->idle() ? cudaSuccess : emulator::remember(cudaErrorNotReady);
}

// ---- events
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if ((flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) {
    return refuse(cudaErrorInvalidValue,
                  fmt::format("cudaEventCreateWithFlags: flags {} are not implemented", flags));
  }
  *event = new CUevent_st(emulator::current_device(), flags);
  return failure(emulator::current_device());
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = check_handle("cudaEventDestroy", event);
  if (event != nullptr) {
    emulator::replace_record(*emulator::find_device(event->device), event->last, 0);
    delete event;
  }
  return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  for (const void* handle : {static_cast<const void*>(event), static_cast<const void*>(stream)}) {
    if (const cudaError_t error = check_handle("cudaEventRecord", handle); error != cudaSuccess) {
      return error;
    }
  }
  if (event->device != stream->device) {
    return refuse(cudaErrorInvalidResourceHandle,
                  fmt::format("cudaEventRecord: the event is of device {}, the stream of device {}",
                              event->device, stream->device));
  }
  Record* record = nullptr;
  {
    const std::lock_guard lock(event->mutex);  // not while submit sleeps: others may query
    record = emulator::replace_record(*emulator::find_device(event->device), event->last, 2);
    event->last = record;
  }
  submit(stream, [record] {
    record->nanoseconds.store(now_nanoseconds(), std::memory_order_relaxed);
    record->done.raise();
    record->leave();
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = check_handle("cudaEventQuery", event); error != cudaSuccess) {
    return error;
  }
  if (event->device != emulator::current_device()) {
    return refuse(
        cudaErrorInvalidResourceHandle,
        fmt::format("cudaEventQuery: the event is of device {}, the thread's device is {}, "
                    "on which CUDA would make a context",
                    event->device, emulator::current_device()));
  }
  Record* record = use_last_record(*event);
  if (record == nullptr) {
    return cudaSuccess;
  }
  const bool done = record->done.reached(1);
  record->leave();
  return done ? cudaSuccess : emulator::remember(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = check_handle("cudaEventSynchronize", event); error != cudaSuccess) {
    return error;
  }
  Device& device = *emulator::find_device(event->device);
  device.synchronisations.fetch_add(1, std::memory_order_relaxed);
  if (Record* record = use_last_record(*event); record != nullptr) {
    record->done.wait(1);
    record->leave();
  }
  return failure(device.number);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  int64_t nanoseconds[2];
  cudaEvent_t const events[2] = {start, end};
  for (int i = 0; i < 2; ++i) {
    if (const cudaError_t error = check_handle("cudaEventElapsedTime", events[i]);
        error != cudaSuccess) {
      return error;
    }
    Record* record = use_last_record(*events[i]);
    if (record == nullptr) {
      return refuse(cudaErrorInvalidResourceHandle,
                    "cudaEventElapsedTime: the event was never recorded");
    }
    const bool done = record->done.reached(1);
    nanoseconds[i] = record->nanoseconds.load(std::memory_order_relaxed);
    record->leave();
    if ((events[i]->flags & cudaEventDisableTiming) != 0) {
      return refuse(cudaErrorInvalidResourceHandle,
                    "cudaEventElapsedTime: the event has no timing");
    }
    if (!done) {
      return emulator::remember(cudaErrorNotReady);
    }
  }
  *milliseconds = float(double(nanoseconds[1] - nanoseconds[0]) * 1e-6);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  for (const void* handle : {static_cast<const void*>(event), static_cast<const void*>(stream)}) {
    if (const cudaError_t error = check_handle("cudaStreamWaitEvent", handle);
        error != cudaSuccess) {
      return error;
    }
  }
  if (flags != 0) {
    return refuse(cudaErrorInvalidValue,
                  fmt::format("cudaStreamWaitEvent: flags {} are not implemented", flags));
  }
  Record* record = use_last_record(*event);
  if (record == nullptr) {
    return refuse(cudaErrorInvalidResourceHandle,
                  "cudaStreamWaitEvent: the event was never recorded; CUDA would not wait");
  }
  Device& device = *emulator::find_device(stream->device);
  const int64_t index = device.waits.fetch_add(1, std::memory_order_relaxed);
  const emulator::Settings& settings = emulator::current_settings();
  if (settings.drop_wait == index && settings.drop_wait_device == device.number) {
    record->leave();
    return cudaSuccess;
  }
  submit(stream, [record] {
    record->done.wait(1);
    record->leave();
  });
  return cudaSuccess;
}
