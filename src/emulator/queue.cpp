#include "emulator/queue.h"

#include <fmt/format.h>
#include <pthread.h>
#include <time.h>

#include <thread>

#include "emulator/block_threads.h"
#include "emulator/device.h"

namespace {
constinit thread_local CUstream_st* executing_stream = nullptr;
}  // namespace

CUstream_st::CUstream_st(int device_number, int stream_number)
    : device(device_number),
      number(stream_number),
      slots_(std::make_unique_for_overwrite<emulator::Slot[]>(kCapacity)) {
  // Detached: a process may exit while streams are idle or wait for a dead peer.
  std::thread([this] { work(); }).detach();
}

CUstream_st::~CUstream_st() = default;

CUstream_st* CUstream_st::executing() {
  return executing_stream;
}

emulator::Slot* CUstream_st::begin_submit() {
  mutex_.lock();
  const uint32_t count = submitted_count();
  if (count - completed_seen_ == kCapacity) {
    completed_.wait(++completed_seen_);
    while (completed_seen_ != count && completed_.reached(completed_seen_ + 1)) {
      ++completed_seen_;
    }
  }
  return &slots_[count % kCapacity];
}

void CUstream_st::end_submit() {
  submitted_count_.store(submitted_count() + 1, std::memory_order_relaxed);
  submitted_.raise();
  mutex_.unlock();
}

void CUstream_st::close() {
  begin_submit()->run = nullptr;
  end_submit();
}

emulator::BlockThreads& CUstream_st::block_threads() {
  if (!block_threads_) {
    block_threads_ = std::make_unique<emulator::BlockThreads>();
  }
  return *block_threads_;
}

void CUstream_st::work() {
  executing_stream = this;
  pthread_setname_np(pthread_self(), fmt::format("stream {}.{}", device, number).c_str());
  for (uint32_t index = 0;; ++index) {
    submitted_.wait(index + 1);
    emulator::Slot& slot = slots_[index % kCapacity];
    if (slot.run == nullptr) {
      break;
    }
    delay();
    slot.run(slot.closure);
    completed_.raise();
  }
  block_threads_.reset();
  completed_.raise();  // the last access: the stream may be deleted from here on
}

void CUstream_st::delay() {
  const emulator::Settings& settings = emulator::current_settings();
  if (const uint32_t epoch = emulator::settings_epoch(); epoch != settings_epoch_) {
    settings_epoch_ = epoch;
    random_ = emulator::Random(settings.delay_seed * 0x100000001b3u + uint64_t(device) * 1000003u +
                               uint64_t(int64_t(number)));
  }
  // Half of the operations run at once, so that streams overtake each other by many operations.
  const bool delays = settings.delay_device < 0 || settings.delay_device == device;
  if (settings.delay_seed == 0 || !delays || random_.below(2) == 0) {
    return;
  }
  const auto nanoseconds = int64_t(random_.below(uint64_t(settings.max_delay_us * 1000) + 1));
  const timespec duration{nanoseconds / 1000000000, nanoseconds % 1000000000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
}

namespace emulator {

Slot* begin_submit(cudaStream_t stream) {
  return stream->begin_submit();
}
void end_submit(cudaStream_t stream) {
  stream->end_submit();
}
int device_of(cudaStream_t stream) {
  return stream->device;
}

}  // namespace emulator
