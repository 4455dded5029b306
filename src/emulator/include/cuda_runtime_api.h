#pragma once

#include <cstddef>
#include <cstdint>

// The CUDA runtime functions that the host flavour has, under CUDA's names and with CUDA's
// documented meaning. What is not declared here is not implemented. Differences are on the strict
// side and are told where they are; what is refused is also explained in a line on stderr.
// Without effect, because the CPU has nothing like it: stream priorities.

#define CUDART_VERSION 12030

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999,
};
using cudaError_t = cudaError;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
// The calling thread's last error; asynchronous errors of its device stay, others are forgotten.
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

// ---- devices. The current device belongs to the calling thread and is 0 at first.
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor;
  int multiProcessorCount;
  int maxThreadsPerBlock;
  int pciDomainID, pciBusID, pciDeviceID;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDeviceSynchronize();

// ---- memory. New and freed memory is filled with NaN. Freeing waits for the device.
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};
inline constexpr unsigned cudaHostAllocDefault = 0;
struct CUstream_st;
using cudaStream_t = CUstream_st*;

cudaError_t cudaMemGetInfo(size_t* available, size_t* total);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);

// These use the default stream, which does not wait for the streams below nor they for it. They
// return early as CUDA documents: cudaMemset at once, cudaMemcpy within a device at once, and
// cudaMemcpy from pageable host memory when the source has been read, but BEFORE the destination is
// written. Before a stream uses what they write: cudaDeviceSynchronize, or use the Async forms.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* pointer, int value, size_t bytes);

// In stream order. Stricter than CUDA: host memory must be from cudaMallocHost (CUDA makes the
// host wait otherwise), both pointers of a copy must be in the memory that the kind says.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream);

// ---- streams. Non-blocking ones only; the default stream cannot be named.
inline constexpr unsigned cudaStreamNonBlocking = 1;

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);

// ---- events
struct CUevent_st;
using cudaEvent_t = CUevent_st*;
inline constexpr unsigned cudaEventDefault = 0;
inline constexpr unsigned cudaEventBlockingSync = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);
// Stricter than CUDA: the event must have been recorded.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
