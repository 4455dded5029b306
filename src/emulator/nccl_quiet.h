#pragma once

#include <cstdint>

// Memory shared between the threads that run NCCL operations. NCCL promises less order than a
// correct queue needs: the receiver sees what came before the send, but the sender learns nothing
// from the receiver, and operations of one communicator on two streams are only in fact
// serialised. The quiet operations here are ordinary sequentially consistent atomics that
// ThreadSanitizer does not see, so it still reports a program that relies on more than the promise.
namespace emulator::nccl {

template <class T>
class Shared {
 public:
  [[gnu::no_sanitize("thread"), gnu::noinline]] T load_quietly() const {
    return __atomic_load_n(&value_, __ATOMIC_SEQ_CST);
  }
  [[gnu::no_sanitize("thread"), gnu::noinline]] void store_quietly(T value) {
    __atomic_store_n(&value_, value, __ATOMIC_SEQ_CST);
  }
  [[gnu::no_sanitize("thread"), gnu::noinline]] T add_quietly(T amount) {
    return __atomic_fetch_add(&value_, amount, __ATOMIC_SEQ_CST);
  }
  [[gnu::no_sanitize("thread"), gnu::noinline]] bool exchange_quietly(T& expected, T value) {
    return __atomic_compare_exchange_n(&value_, &expected, value, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
  }
  T load_acquire() const { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
  void store_release(T value) { __atomic_store_n(&value_, value, __ATOMIC_RELEASE); }
  void add_release(T amount) { __atomic_fetch_add(&value_, amount, __ATOMIC_RELEASE); }
  const T* address() const { return &value_; }

 private:
  T value_ = 0;
};

// Nanoseconds of the steady clock.
int64_t now_ns();

// Sleeps while the word is `seen`, at most until the deadline; may return early.
inline constexpr int64_t never = INT64_MAX;
void sleep_while(const Shared<uint32_t>& word, uint32_t seen, int64_t deadline_ns = never);
void wake_all(const Shared<uint32_t>& word);

// Lets operations through in the order of their tickets.
class Turnstile {
 public:
  uint32_t take_ticket() { return next_.add_quietly(1); }
  void enter(uint32_t ticket);
  void leave();
  // Until the operation with this ticket has left, and with everything it did.
  void join(uint32_t ticket) const;

 private:
  Shared<uint32_t> next_;
  Shared<uint32_t> left_;
};

// One direction between two devices: messages share its bandwidth, each has its latency.
struct LinkSpeed {
  double latency_us = 0;
  double bytes_per_us = 0;  // 0: unlimited
};
class Link {
 public:
  // When a message that can start now will have arrived.
  int64_t arrival_ns(const LinkSpeed& speed, uint64_t bytes);

 private:
  Shared<int64_t> busy_until_;
};

}  // namespace emulator::nccl
