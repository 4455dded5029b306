#include "emulator/nccl_quiet.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>

namespace emulator::nccl {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void sleep_while(const Shared<uint32_t>& word, uint32_t seen, int64_t deadline_ns) {
  timespec until{};
  if (deadline_ns != never) {
    until = {time_t(deadline_ns / 1000000000), long(deadline_ns % 1000000000)};
  }
  // FUTEX_WAIT_BITSET takes an absolute time of the steady clock.
  syscall(SYS_futex, word.address(), FUTEX_WAIT_BITSET_PRIVATE, seen,
          deadline_ns == never ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void wake_all(const Shared<uint32_t>& word) {
  syscall(SYS_futex, word.address(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Turnstile::enter(uint32_t ticket) {
  for (uint32_t left = left_.load_quietly(); left != ticket; left = left_.load_quietly()) {
    sleep_while(left_, left);
  }
}

void Turnstile::leave() {
  left_.add_release(1);
  wake_all(left_);
}

void Turnstile::join(uint32_t ticket) const {
  for (uint32_t left = left_.load_acquire(); int32_t(left - ticket) <= 0;
       left = left_.load_acquire()) {
    sleep_while(left_, left);
  }
}

int64_t Link::arrival_ns(const LinkSpeed& speed, uint64_t bytes) {
  if (speed.latency_us == 0 && speed.bytes_per_us == 0) {
    return 0;
  }
  // Without this the kernel may let a sleeper lie 50 microseconds longer.
  thread_local const int slack = prctl(PR_SET_TIMERSLACK, 1000UL);
  (void)slack;
  const auto busy_ns =
      speed.bytes_per_us == 0 ? int64_t(0) : int64_t(1000.0 * double(bytes) / speed.bytes_per_us);
  int64_t free_at = busy_until_.load_quietly();
  int64_t end = 0;
  do {
    end = std::max(free_at, now_ns()) + busy_ns;
  } while (!busy_until_.exchange_quietly(free_at, end));
  return end + int64_t(1000.0 * speed.latency_us);
}

}  // namespace emulator::nccl
