#pragma once

#include <cuda_runtime.h>

namespace pipetrain {

enum class StreamPriority { normal, high };

// A non-blocking CUDA stream of the current device.
class Stream {
 public:
  explicit Stream(StreamPriority priority = StreamPriority::normal);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace pipetrain
