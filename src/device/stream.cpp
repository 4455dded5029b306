#include "pipetrain/device/stream.h"

#include "pipetrain/device/check.h"

namespace pipetrain {

Stream::Stream(StreamPriority priority) {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                     priority == StreamPriority::high ? greatest : least),
        "cudaStreamCreateWithPriority");
}

Stream::~Stream() {
  report(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

void Stream::synchronize() const {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

}  // namespace pipetrain
