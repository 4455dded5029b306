// A stream kept busy for a given time. The two devices have nothing in common here: on the host a
// loop until the time is over would take the core that other ranks need.

#include "kernels/occupy.h"
#include "kernels/parallel.h"

#ifdef PIPETRAIN_HOST
#include <emulator.h>
#endif

namespace pipetrain::kernels {

#ifdef PIPETRAIN_CUDA
namespace {

// ---- kernels

__device__ uint64_t device_nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void occupy_kernel(uint64_t nanoseconds) {
  const uint64_t start = device_nanoseconds();
  while (device_nanoseconds() - start < nanoseconds) {
    __nanosleep(500);
  }
}

}  // namespace

// ---- launchers

void occupy(int64_t nanoseconds, cudaStream_t stream) {
  launch(occupy_kernel, 1, stream, uint64_t(nanoseconds));
}
#else
void occupy(int64_t nanoseconds, cudaStream_t stream) {
  check(emulator::occupy(stream, nanoseconds), "occupy");
}
#endif

}  // namespace pipetrain::kernels
