#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipetrain/device/memory.h"

namespace pipetrain {

// Slots of equal size in device memory. The lowered list says which slot an action takes; the pool
// checks that it is free. It has exactly as many slots as the schedule's peak.
class Pool {
 public:
  static size_t bytes(int slots, size_t slot_bytes) { return size_t(slots) * aligned(slot_bytes); }
  Pool(std::string name, int slots, size_t slot_bytes, Region& region);

  // Throw InternalError: taking a slot that is in use, giving back or using one that is not.
  std::byte* take(int slot);
  std::byte* use(int slot) const;
  void give_back(int slot);

  // Peak in use as seen in the memory itself: poison() fills every slot with NaN before step 1,
  // touched_slots() counts those whose first bytes were overwritten since. Both wait for the
  // device.
  void poison();
  int touched_slots() const;

  int slots() const { return int(in_use_.size()); }
  size_t slot_bytes() const { return slot_bytes_; }
  std::byte* data() const { return data_; }

 private:
  std::string name_;
  size_t slot_bytes_;
  std::byte* data_;
  std::vector<bool> in_use_;
};

}  // namespace pipetrain
