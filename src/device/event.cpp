#include "pipetrain/device/event.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

std::string text(const Tag& tag) {
  return fmt::format("step {} stage {} micro-batch {}", tag.step, tag.stage, tag.microbatch);
}

}  // namespace

Event::Event(Timing timing) {
  const unsigned flags = timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
}

Event::~Event() {
  if (event_ != nullptr) {
    report(cudaEventDestroy(event_), "cudaEventDestroy");
  }
}

Event::Event(Event&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)),
      recorded_(std::exchange(other.recorded_, false)),
      tag_(other.tag_) {}

void Event::record(const Stream& stream, const Tag& tag) {
  check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
  recorded_ = true;
  tag_ = tag;
}

void Event::wait(const Stream& stream, const Tag& tag) const {
  if (!recorded_) {
    throw InternalError(fmt::format("wait for {} on an event that was never recorded", text(tag)));
  }
  if (tag != tag_) {
    throw InternalError(fmt::format("wait for {} on an event that was last recorded for {}",
                                    text(tag), text(tag_)));
  }
  check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent");
}

bool Event::done() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // not an error
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}

void Event::synchronize() const {
  check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

double Event::milliseconds_since(const Event& earlier) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
  return milliseconds;
}

}  // namespace pipetrain
