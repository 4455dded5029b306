#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "emulator/stream.h"

namespace emulator {

class BlockThreads;

// SplitMix64: small, and any seed is good.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};

}  // namespace emulator

// A stream: a ring of operations and the thread that runs them. Submitters publish by `submitted`
// and look at `completed` only when the ring seems full or the host waits for the stream, so that
// submitting gives the host no order with what has run.
struct CUstream_st {
 public:
  static constexpr uint32_t kCapacity = 1024;

  // number: among the streams of the device; it seeds the random delays.
  CUstream_st(int device_number, int stream_number);
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  emulator::Slot* begin_submit();
  void end_submit();

  uint32_t submitted_count() const { return submitted_count_.load(std::memory_order_relaxed); }
  void wait(uint32_t count) { completed_.wait(count); }
  bool idle() const { return completed_.reached(submitted_count()); }
  // Ends the thread after what is queued. The stream may be deleted once it is idle.
  void close();

  // The stream whose thread this is.
  static CUstream_st* executing();
  emulator::Random& random() { return random_; }
  emulator::BlockThreads& block_threads();

  const int device;
  const int number;

 private:
  void work();
  void delay();

  std::mutex mutex_;  // of submitters; guards writes of the next two
  std::atomic<uint32_t> submitted_count_{0};
  uint32_t completed_seen_ = 0;
  std::unique_ptr<emulator::Slot[]> slots_;
  emulator::Progress submitted_;
  emulator::Progress completed_;

  // Of the stream's thread alone.
  uint32_t settings_epoch_ = 0;
  emulator::Random random_{0};
  std::unique_ptr<emulator::BlockThreads> block_threads_;
};
