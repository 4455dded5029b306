#pragma once

#include <atomic>
#include <cstdint>

namespace emulator {

// Sleeps while *word is `seen`; may return early.
void futex_wait(const std::atomic<uint32_t>* word, uint32_t seen);
void futex_wake_all(const std::atomic<uint32_t>* word);

// A count that only rises and that threads sleep on. It orders exactly one thing, as CUDA does:
// what came before raise() comes before what follows a wait() or reached() that saw it. In
// particular raise() learns nothing from the waiters, so ThreadSanitizer sees no other order.
// Counts are modulo 2^31.
class Progress {
 public:
  void raise();
  void wait(uint32_t count);
  bool reached(uint32_t count) const {
    return at_least(word_.load(std::memory_order_acquire), count);
  }
  // Back to 0, while nobody waits.
  void reset() { word_.store(0, std::memory_order_release); }

 private:
  static bool at_least(uint32_t word, uint32_t count) {
    return int32_t((word & ~1u) - 2 * count) >= 0;
  }

  std::atomic<uint32_t> word_{0};  // 2 * count, + 1 while somebody sleeps
};

}  // namespace emulator
