#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "emulator/device.h"
#include "emulator/stream.h"

namespace {
constinit thread_local cudaError_t last_error = cudaSuccess;
}  // namespace

namespace emulator {

void complain(std::string_view message) {
  const std::string line = fmt::format("pipetrain host emulator: {}\n", message);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

cudaError_t remember(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t refuse(cudaError_t error, std::string_view message) {
  complain(message);
  return remember(error);
}

void fail(int device, cudaError_t error, std::string_view message) {
  complain(fmt::format("device {}: {}", device, message));
  cudaError_t expected = cudaSuccess;
  find_device(device)->error.compare_exchange_strong(expected, error, std::memory_order_relaxed);
}

cudaError_t failure(int device) {
  return find_device(device)->error.load(std::memory_order_relaxed);
}

void clear_failure(int device) {
  find_device(device)->error.store(cudaSuccess, std::memory_order_relaxed);
}

}  // namespace emulator

cudaError_t cudaPeekAtLastError() {
  const cudaError_t error = emulator::failure(emulator::current_device());
  return error != cudaSuccess ? error : last_error;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection:
      return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorUnknown:
      return "cudaErrorUnknown";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidMemcpyDirection:
      return "the pointers of a copy do not fit its kind";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorUnknown:
      return "unknown error";
  }
  return "unrecognized error code";
}
