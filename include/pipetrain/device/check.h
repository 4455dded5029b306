#pragma once

#include <cuda_runtime.h>

#include <source_location>

namespace pipetrain {

// Throws InternalError with the CUDA error, the call and the line; out of memory is DoesNotFit.
void check(cudaError_t status, const char* call,
           const std::source_location& where = std::source_location::current());

// The same for destructors: prints one line on standard error instead of throwing.
void report(cudaError_t status, const char* call) noexcept;

}  // namespace pipetrain
