#include "pipetrain/runtime/pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"
#include "pipetrain/progress.h"

namespace pipetrain {

namespace {

constexpr size_t probe_bytes = 256;
constexpr int poison_byte = 0xFF;  // a NaN in every floating-point format

}  // namespace

Pool::Pool(std::string name, int slots, size_t slot_bytes, Region& region)
    : name_(std::move(name)),
      slot_bytes_(aligned(slot_bytes)),
      data_(region.take_bytes(bytes(slots, slot_bytes))),
      in_use_(size_t(slots), false) {}

std::byte* Pool::take(int slot) {
  if (slot < 0 || slot >= slots() || in_use_[size_t(slot)]) {
    throw InternalError(fmt::format("{}: slot {} of {} cannot be taken", name_, slot, slots()));
  }
  in_use_[size_t(slot)] = true;
  return data_ + size_t(slot) * slot_bytes_;
}

std::byte* Pool::use(int slot) const {
  if (slot < 0 || slot >= slots() || !in_use_[size_t(slot)]) {
    throw InternalError(fmt::format("{}: slot {} of {} is not in use", name_, slot, slots()));
  }
  return data_ + size_t(slot) * slot_bytes_;
}

void Pool::give_back(int slot) {
  use(slot);
  in_use_[size_t(slot)] = false;
}

void Pool::poison() {
  for (int slot = 0; slot < slots(); ++slot) {
    check(cudaMemset(data_ + size_t(slot) * slot_bytes_, poison_byte, slot_bytes_), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // cudaMemset may return earlier
    report_progress();
  }
}

int Pool::touched_slots() const {
  int touched = 0;
  const size_t probe = std::min(probe_bytes, slot_bytes_);
  std::vector<unsigned char> head(probe);
  const std::vector<unsigned char> untouched(probe, poison_byte);
  for (int slot = 0; slot < slots(); ++slot) {
    check(
        cudaMemcpy(head.data(), data_ + size_t(slot) * slot_bytes_, probe, cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    touched += head != untouched;
  }
  return touched;
}

}  // namespace pipetrain
