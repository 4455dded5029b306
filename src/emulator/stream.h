#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>

#include "emulator/progress.h"

// What the emulated libraries (cuBLASLt, NCCL) build on: work in stream order.
namespace emulator {

// Bytes of an operation's closure, which lies in the stream's queue itself.
inline constexpr size_t kClosureBytes = 480;

// ---- submitting
// Where the next operation of a stream is written; between begin_submit and end_submit the calling
// thread holds the stream's submission lock. begin_submit sleeps while the queue is full.
struct Slot {
  void (*run)(void* closure);
  alignas(16) std::byte closure[kClosureBytes];
};
Slot* begin_submit(cudaStream_t stream);
void end_submit(cudaStream_t stream);

// Appends op to the stream; op() runs on the stream's own thread after all earlier operations of
// the stream. The closure is copied and never destroyed: pointers and numbers only. op may sleep
// (in Progress::wait, in a system call) for as long as it likes: only its stream waits for it.
// op must take no lock and do no reference counting that another stream's operations use too:
// ThreadSanitizer would take that for an order which CUDA does not promise.
// The stream must not be null.
template <class F>
void submit(cudaStream_t stream, const F& op) {
  static_assert(sizeof(F) <= kClosureBytes && alignof(F) <= 16, "the closure is too large");
  static_assert(std::is_trivially_copy_constructible_v<F> && std::is_trivially_destructible_v<F>,
                "the closure may hold pointers and numbers only");
  Slot* slot = begin_submit(stream);
  new (slot->closure) F(op);
  slot->run = [](void* closure) { (*static_cast<F*>(closure))(); };
  end_submit(stream);
}

int device_of(cudaStream_t stream);
// The calling thread's device, as cudaGetDevice.
int current_device();

// ---- one operation at a time
// A place in the order in which the host launched operations on a device. Take it right before
// submit() and copy it into the closure; there begin() sleeps until all earlier turns have ended.
// Every turn taken must be begun and ended, on whichever stream. For Settings::one_at_a_time.
class Turn {
 public:
  Turn(Progress* ended, uint32_t number) : ended_(ended), number_(number) {}
  void begin() { ended_->wait(number_); }
  void end() { ended_->raise(); }

 private:
  Progress* ended_;
  uint32_t number_;  // how many turns come before it
};
Turn take_turn(int device);

// ---- errors
// Records an asynchronous error of a device and prints the message: from now on every CUDA call on
// that device returns the first such error. Callable from operations.
void fail(int device, cudaError_t error, std::string_view message);
// The error recorded by fail, or cudaSuccess.
cudaError_t failure(int device);
// Prints why a call was refused, as one line on stderr.
void complain(std::string_view message);
// Remembers the thread's last CUDA error and returns it.
cudaError_t remember(cudaError_t error);
// complain and remember.
cudaError_t refuse(cudaError_t error, std::string_view message);

// ---- memory
// Whether all of [pointer, pointer + bytes) lies in one allocation of this device. Takes a lock:
// for the submitting side only.
bool is_device_memory(int device, const void* pointer, size_t bytes);

}  // namespace emulator
