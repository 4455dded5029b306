#include "pipetrain/device/check.h"

#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

std::string_view file_name(const std::source_location& where) {
  const std::string_view path = where.file_name();
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

void check(cudaError_t status, const char* call, const std::source_location& where) {
  if (status == cudaSuccess) {
    return;
  }
  cudaGetLastError();  // an error that does not poison the device is not reported twice
  const std::string message = fmt::format("{}: {} ({}), at {}:{}", call, cudaGetErrorString(status),
                                          cudaGetErrorName(status), file_name(where), where.line());
  if (status == cudaErrorMemoryAllocation) {
    throw DoesNotFit(message);
  }
  throw InternalError(message);
}

void report(cudaError_t status, const char* call) noexcept {
  if (status != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
  }
}

}  // namespace pipetrain
