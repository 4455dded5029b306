#include "emulator/progress.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace emulator {

void futex_wait(const std::atomic<uint32_t>* word, uint32_t seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Progress::raise() {
  uint32_t word = word_.load(std::memory_order_relaxed);
  while (!word_.compare_exchange_weak(word, (word + 2) & ~1u, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
  if ((word & 1u) != 0) {
    futex_wake_all(&word_);  // by address only: a waiter that saw the count may have freed it
  }
}

void Progress::wait(uint32_t count) {
  uint32_t word = word_.load(std::memory_order_acquire);
  while (!at_least(word, count)) {
    if ((word & 1u) != 0 ||
        word_.compare_exchange_strong(word, word | 1u, std::memory_order_relaxed)) {
      futex_wait(&word_, word | 1u);
    }
    word = word_.load(std::memory_order_acquire);
  }
}

}  // namespace emulator
