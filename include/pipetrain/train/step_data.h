#pragma once

#include <array>
#include <cstdint>

#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/model/stage.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/tokens.h"

namespace pipetrain {

// Tokens, targets and loss scale of a step, on the ranks that need them.
class StepBuffers {
 public:
  static size_t bytes(const BudgetRequest& request, const schedule::Placement& placement, int rank);
  // `losses`: where the head writes the losses of the micro-batches.
  StepBuffers(const BudgetRequest& request, const schedule::Placement& placement, int rank,
              std::byte* losses, Region& region);

  const StepData& data() const { return data_; }

  // Reads the step's micro-batches and submits their copies to the device, with the factor of every
  // loss. The step before the last one must have ended: its pinned memory is used again.
  void upload(int64_t step, const DataSource& source, int replica, double loss_scale,
              const Stream& compute);

 private:
  struct Pinned {
    explicit Pinned(size_t tokens);
    PinnedBuffer inputs;
    PinnedBuffer targets;
    PinnedBuffer scale;
  };

  Precision precision_;
  bool embeds_;
  bool has_head_;
  size_t tokens_;  // M*B*T
  std::byte* inputs_ = nullptr;
  std::byte* targets_ = nullptr;
  std::byte* scale_ = nullptr;
  StepData data_;
  std::array<Pinned, 2> pinned_;
};

}  // namespace pipetrain
