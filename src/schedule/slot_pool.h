#pragma once

#include <vector>

namespace pipetrain::schedule {

// Indices into a pool of equal buffers. The pool grows to the largest number in use at once.
class SlotPool {
 public:
  int take() {
    if (free_.empty()) {
      return size_++;
    }
    const int slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give(int slot) { free_.push_back(slot); }
  int size() const { return size_; }

 private:
  std::vector<int> free_;
  int size_ = 0;
};

}  // namespace pipetrain::schedule
