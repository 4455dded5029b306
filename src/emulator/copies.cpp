#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "emulator/device.h"
#include "emulator/memory.h"

// Copies and fills.
namespace {

using emulator::Device;
using emulator::failure;
using emulator::Location;
using emulator::Place;
using emulator::refuse;
using emulator::submit;

// The last bytes of a copy from pageable memory may be under way when cudaMemcpy returns.
constexpr size_t kStagedBytes = 65536;

const char* name_of(const Location& location) {
  switch (location.place) {
    case Place::pageable:
      return "pageable host";
    case Place::pinned:
      return "pinned host";
    case Place::device:
      return "device";
  }
  return "";
}

// Whether `bytes` from a pointer lie in memory of this device, or wholly outside of all devices'.
bool lies_in(const Location& location, size_t bytes, bool on_device, int device) {
  if (location.place == Place::pageable) {
    return !on_device;
  }
  return (location.place == Place::device) == on_device && location.bytes >= bytes &&
         (!on_device || location.device == device);
}

// Checks a copy against its kind; counts it if it is between host and device.
cudaError_t check_copy(const char* call, Device& device, const Location& to, const Location& from,
                       size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDeviceToDevice) {
    return refuse(cudaErrorInvalidMemcpyDirection,
                  fmt::format("{}: kind {} is not implemented", call, int(kind)));
  }
  if (!lies_in(to, bytes, to_device, device.number) ||
      !lies_in(from, bytes, from_device, device.number)) {
    return refuse(
        cudaErrorInvalidValue,
        fmt::format(
            "{}: {} bytes, kind {}: the destination is {} memory (device {}, {} bytes left), "
            "the source {} memory (device {}, {} bytes left), the copy is on device {}",
            call, bytes, int(kind), name_of(to), to.device, to.bytes, name_of(from), from.device,
            from.bytes, device.number));
  }
  if (to_device != from_device) {
    device.host_copies.fetch_add(1, std::memory_order_relaxed);
  }
  return cudaSuccess;
}

cudaError_t check_fill(const char* call, Device& device, const void* pointer, size_t bytes) {
  if (!emulator::is_device_memory(device.number, pointer, bytes)) {
    return refuse(cudaErrorInvalidValue, fmt::format("{}: {} bytes are not all memory of device {}",
                                                     call, bytes, device.number));
  }
  return cudaSuccess;
}

void submit_copy(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  submit(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
}

void submit_fill(cudaStream_t stream, void* pointer, int value, size_t bytes) {
  submit(stream, [pointer, value, bytes] { std::memset(pointer, value, bytes); });
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  Device& device = emulator::this_device();
  if (const cudaError_t error = failure(device.number); error != cudaSuccess || bytes == 0) {
    return error;
  }
  const Location source = emulator::locate(from);
  if (const cudaError_t error =
          check_copy("cudaMemcpy", device, emulator::locate(to), source, bytes, kind);
      error != cudaSuccess) {
    return error;
  }
  device.synchronisations.fetch_add(1, std::memory_order_relaxed);
  CUstream_st& stream = emulator::default_stream(device);
  const std::lock_guard lock(device.copy_mutex);
  if (kind == cudaMemcpyDeviceToDevice) {
    submit_copy(&stream, to, from, bytes);
    return failure(device.number);
  }
  stream.wait(stream.submitted_count());
  const bool staged = kind == cudaMemcpyHostToDevice && source.place == Place::pageable;
  const size_t late = staged ? std::min(bytes, kStagedBytes) : 0;
  std::memcpy(to, from, bytes - late);
  if (late != 0) {
    device.staging.resize(kStagedBytes);
    std::memcpy(device.staging.data(), static_cast<const char*>(from) + (bytes - late), late);
    submit_copy(&stream, static_cast<char*>(to) + (bytes - late), device.staging.data(), late);
  }
  return failure(device.number);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (stream == nullptr) {
    return refuse(cudaErrorInvalidResourceHandle,
                  "cudaMemcpyAsync: the default stream is not implemented");
  }
  Device& device = *emulator::find_device(stream->device);
  if (const cudaError_t error = failure(device.number); error != cudaSuccess || bytes == 0) {
    return error;
  }
  const Location target = emulator::locate(to);
  const Location source = emulator::locate(from);
  if (const cudaError_t error = check_copy("cudaMemcpyAsync", device, target, source, bytes, kind);
      error != cudaSuccess) {
    return error;
  }
  if (target.place == Place::pageable || source.place == Place::pageable) {
    return refuse(cudaErrorInvalidValue,
                  "cudaMemcpyAsync: the host memory is not from cudaMallocHost; CUDA may make the "
                  "host wait");
  }
  submit_copy(stream, to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  Device& device = emulator::this_device();
  if (const cudaError_t error = failure(device.number); error != cudaSuccess || bytes == 0) {
    return error;
  }
  if (const cudaError_t error = check_fill("cudaMemset", device, pointer, bytes);
      error != cudaSuccess) {
    return error;
  }
  submit_fill(&emulator::default_stream(device), pointer, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  if (stream == nullptr) {
    return refuse(cudaErrorInvalidResourceHandle,
                  "cudaMemsetAsync: the default stream is not implemented");
  }
  Device& device = *emulator::find_device(stream->device);
  if (const cudaError_t error = failure(device.number); error != cudaSuccess || bytes == 0) {
    return error;
  }
  if (const cudaError_t error = check_fill("cudaMemsetAsync", device, pointer, bytes);
      error != cudaSuccess) {
    return error;
  }
  submit_fill(stream, pointer, value, bytes);
  return cudaSuccess;
}
