#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "emulator/progress.h"

namespace emulator {

inline constexpr unsigned kMaxBlockThreads = 64;
inline constexpr unsigned kMaxWarpSize = 32;

// The lanes of one warp, each a thread. exchange() orders no memory accesses that ThreadSanitizer
// sees, as shuffles do not in CUDA; synchronise() does. Lanes that call different functions, or
// that leave the kernel while others still call, make the launch fail.
class Warp {
 public:
  void start(unsigned lanes);
  uint64_t exchange(unsigned lane, unsigned parity, uint64_t bits, unsigned source);
  unsigned vote(unsigned lane, unsigned parity, bool bit);
  void synchronise();
  void leave();

 private:
  enum class Call : unsigned { exchange = 1, vote = 2, synchronise = 4, leave = 8 };
  void arrive(Call call);

  std::atomic<unsigned> lanes_{0};    // that have not left
  std::atomic<unsigned> arrived_{0};  // in this round, + 65536 for each that leaves
  std::atomic<unsigned> calls_{0};    // which functions were called in this round
  std::atomic<uint32_t> round_{0};
  std::atomic<uint64_t> values_[2][kMaxWarpSize];  // by parity of the exchange, by lane
};

// The threads that run a stream's blocks of more than one thread.
class BlockThreads {
 public:
  BlockThreads() = default;
  ~BlockThreads();

  // Runs call(data) once for each thread of the block and waits for all.
  void run(dim3 grid, dim3 block, uint3 block_index, void (*call)(const void*), const void* data);

 private:
  struct Job {
    dim3 grid, block;
    uint3 block_index;
    void (*call)(const void*);  // null: end the thread
    const void* data;
  };
  void work(unsigned index, uint32_t round);
  void run_thread(unsigned index);
  void start_round();

  std::vector<std::thread> threads_;
  std::deque<Warp> warps_;
  Job job_{};
  uint32_t round_ = 0;
  uint32_t finished_count_ = 0;
  Progress started_;
  Progress finished_;
};

}  // namespace emulator
