#include "emulator/block_threads.h"

#include <fmt/format.h>

#include "emulator/queue.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace emulator {
namespace {

// The warp of a thread of a block, and the exchanges it has made.
struct Lane {
  Warp* warp;
  CUstream_st* stream;
  unsigned exchanges;
};
constinit thread_local Lane this_lane{};

// A full fence of the processor that ThreadSanitizer does not see: it makes exchanges right without
// giving the lanes an order.
void hardware_fence() {
#if defined(__x86_64__)
  __asm__ volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
  __asm__ volatile("dmb ish" ::: "memory");
#else
#error "no full fence is known for this processor"
#endif
}

void fail_launch(std::string_view message) {
  fail(this_lane.stream->device, cudaErrorLaunchFailure, message);
}

Warp& warp_of(unsigned mask) {
  if (mask != 0xffffffffu) {
    fail_launch(
        fmt::format("a warp function with mask {:#x}: only whole warps (0xffffffff) are "
                    "implemented",
                    mask));
  }
  return *this_lane.warp;
}

}  // namespace

void Warp::start(unsigned lanes) {
  lanes_.store(lanes, std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  calls_.store(0, std::memory_order_relaxed);
}

void Warp::arrive(Call call) {
  constexpr unsigned kLeft = 65536;
  const bool synchronises = call == Call::synchronise;
  const uint32_t round = round_.load(std::memory_order_relaxed);
  const unsigned lanes = lanes_.load(std::memory_order_relaxed);
  calls_.fetch_or(unsigned(call), std::memory_order_relaxed);
  hardware_fence();
  const unsigned arrived =
      arrived_.fetch_add(call == Call::leave ? kLeft + 1 : 1,
                         synchronises ? std::memory_order_acq_rel : std::memory_order_relaxed) +
      (call == Call::leave ? kLeft + 1 : 1);
  if (arrived % kLeft == lanes) {
    const unsigned calls = calls_.exchange(0, std::memory_order_relaxed);
    if ((calls & (calls - 1)) != 0) {
      fail_launch("the lanes of a warp called different warp functions, or one left the kernel");
    }
    lanes_.store(lanes - arrived / kLeft, std::memory_order_relaxed);
    arrived_.store(0, std::memory_order_relaxed);
    hardware_fence();
    round_.fetch_add(1, synchronises ? std::memory_order_release : std::memory_order_relaxed);
    futex_wake_all(&round_);
  } else if (call != Call::leave) {
    while (round_.load(synchronises ? std::memory_order_acquire : std::memory_order_relaxed) ==
           round) {
      futex_wait(&round_, round);
    }
    hardware_fence();
  }
}

// A value is overwritten two exchanges later, when every lane has passed the exchange between and
// so has read it.
uint64_t Warp::exchange(unsigned lane, unsigned parity, uint64_t bits, unsigned source) {
  values_[parity][lane].store(bits, std::memory_order_relaxed);
  arrive(Call::exchange);
  return values_[parity][source].load(std::memory_order_relaxed);
}

unsigned Warp::vote(unsigned lane, unsigned parity, bool bit) {
  values_[parity][lane].store(bit, std::memory_order_relaxed);
  arrive(Call::vote);
  unsigned votes = 0;
  for (unsigned other = 0; other < blockDim.x; ++other) {
    votes |= unsigned(values_[parity][other].load(std::memory_order_relaxed)) << other;
  }
  return votes;
}

void Warp::synchronise() {
  arrive(Call::synchronise);
}
void Warp::leave() {
  arrive(Call::leave);
}

uint64_t exchange(unsigned mask, uint64_t bits, unsigned lane) {
  Warp& warp = warp_of(mask);
  if (lane >= blockDim.x) {
    fail_launch(fmt::format("a shuffle reads lane {} of a warp of {}", lane, blockDim.x));
    lane = threadIdx.x;
  }
  return warp.exchange(threadIdx.x, this_lane.exchanges++ % 2, bits, lane);
}

unsigned vote(unsigned mask, bool bit) {
  return warp_of(mask).vote(threadIdx.x, this_lane.exchanges++ % 2, bit);
}

void synchronise_warp(unsigned mask) {
  warp_of(mask).synchronise();
}

BlockThreads::~BlockThreads() {
  job_.call = nullptr;
  start_round();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void BlockThreads::start_round() {
  ++round_;
  started_.raise();
}

void BlockThreads::run(dim3 grid, dim3 block, uint3 block_index, void (*call)(const void*),
                       const void* data) {
  const unsigned count = block.x * block.y;
  while (threads_.size() < count) {
    CUstream_st* stream = CUstream_st::executing();
    threads_.emplace_back([this, stream, index = unsigned(threads_.size()), round = round_] {
      this_lane.stream = stream;
      work(index, round);
    });
  }
  while (warps_.size() < block.y) {
    warps_.emplace_back();
  }
  for (unsigned warp = 0; warp < block.y; ++warp) {
    warps_[warp].start(block.x);
  }
  job_ = {grid, block, block_index, call, data};
  start_round();
  finished_count_ += uint32_t(threads_.size());
  finished_.wait(finished_count_);
}

void BlockThreads::work(unsigned index, uint32_t round) {
  while (true) {
    started_.wait(++round);
    if (job_.call == nullptr) {
      return;
    }
    if (index < job_.block.x * job_.block.y) {
      run_thread(index);
    }
    finished_.raise();
  }
}

void BlockThreads::run_thread(unsigned index) {
  threadIdx = {index % job_.block.x, index / job_.block.x, 0};
  blockIdx = job_.block_index;
  blockDim = job_.block;
  gridDim = job_.grid;
  this_lane.warp = &warps_[threadIdx.y];
  this_lane.exchanges = 0;
  job_.call(job_.data);
  this_lane.warp->leave();
}

}  // namespace emulator
