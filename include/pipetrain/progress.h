#pragma once

#include <functional>
#include <utility>

namespace pipetrain {

// Hears what its thread reports with report_progress(), from construction to destruction; one that
// is made while another lives takes its place.
class ProgressListener {
 public:
  explicit ProgressListener(std::function<void()> heard)
      : heard_(std::move(heard)), previous_(std::exchange(current_, this)) {}
  ~ProgressListener() { current_ = previous_; }
  ProgressListener(const ProgressListener&) = delete;
  ProgressListener& operator=(const ProgressListener&) = delete;

 private:
  friend void report_progress();

  static inline thread_local ProgressListener* current_ = nullptr;
  std::function<void()> heard_;
  ProgressListener* previous_;
};

// Said by work on the host that may take long, several times a second, so that a deadline ends only
// what stands still. Costs a reading of the clock at most.
inline void report_progress() {
  if (ProgressListener::current_ != nullptr) {
    ProgressListener::current_->heard_();
  }
}

}  // namespace pipetrain
