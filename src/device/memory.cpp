#include "pipetrain/device/memory.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <utility>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"
#include "pipetrain/progress.h"

namespace pipetrain {
namespace {

constexpr double mib = 1024.0 * 1024.0;

std::byte* allocate_on_device(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t available = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    throw DoesNotFit(
        fmt::format("{:.1f} MiB of device memory asked for, {:.1f} of {:.1f} MiB are free",
                    bytes / mib, available / mib, total / mib));
  }
  check(status, "cudaMalloc");
  report_progress();
  return static_cast<std::byte*>(data);
}

}  // namespace

Buffer::Buffer(size_t bytes)
    : data_(bytes == 0 ? nullptr : allocate_on_device(bytes)), bytes_(bytes) {}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    report(cudaFree(data_), "cudaFree");
    report_progress();
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedBuffer::PinnedBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes != 0) {
    void* data = nullptr;
    check(cudaMallocHost(&data, bytes), "cudaMallocHost");
    data_ = static_cast<std::byte*>(data);
  }
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) {
    report(cudaFreeHost(data_), "cudaFreeHost");
  }
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

std::byte* Region::take_bytes(size_t bytes) {
  const size_t taken = aligned(bytes);
  if (taken < bytes || taken > bytes_) {
    throw InternalError(fmt::format("{} bytes asked of a region that has {} left", bytes, bytes_));
  }
  std::byte* const piece = data_;
  data_ += taken;
  bytes_ -= taken;
  return piece;
}

}  // namespace pipetrain
