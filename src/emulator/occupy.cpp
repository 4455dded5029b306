#include <emulator.h>
#include <sys/prctl.h>
#include <time.h>

#include "emulator/stream.h"

namespace emulator {

cudaError_t occupy(cudaStream_t stream, int64_t nanoseconds) {
  if (stream == nullptr || nanoseconds < 0) {
    return refuse(cudaErrorInvalidValue, "occupy: needs a stream and a time of at least 0");
  }
  submit(stream, [nanoseconds] {
    // Without this the kernel may let a sleeper lie 50 microseconds longer.
    thread_local const int slack = prctl(PR_SET_TIMERSLACK, 1UL);
    (void)slack;
    timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    const int64_t since_second = end.tv_nsec + nanoseconds;
    end.tv_sec += time_t(since_second / 1000000000);
    end.tv_nsec = long(since_second % 1000000000);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) != 0) {
    }
  });
  return failure(device_of(stream));
}

}  // namespace emulator
