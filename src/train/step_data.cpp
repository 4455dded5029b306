#include "pipetrain/train/step_data.h"

#include <algorithm>
#include <cstring>

#include "pipetrain/device/check.h"

namespace pipetrain {
namespace {

size_t token_count(const BudgetRequest& request, const schedule::Placement& placement) {
  return size_t(placement.microbatches()) * size_t(request.shape.rows());
}

bool holds(const BudgetRequest& request, const schedule::Placement& placement, int rank,
           bool StageLayers::*part) {
  const std::vector<StageLayers> held = held_stages(request, placement, rank);
  return std::any_of(held.begin(), held.end(),
                     [part](const StageLayers& stage) { return stage.*part; });
}

void copy_to_device(void* to, const void* from, size_t bytes, const Stream& stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()), "cudaMemcpyAsync");
}

}  // namespace

size_t StepBuffers::bytes(const BudgetRequest& request, const schedule::Placement& placement,
                          int rank) {
  const size_t accumulator = accumulator_bytes(request.precision);
  size_t sum = 0;
  if (holds(request, placement, rank, &StageLayers::embedding)) {
    sum += aligned(token_count(request, placement) * sizeof(int));
  }
  if (holds(request, placement, rank, &StageLayers::head)) {
    sum += aligned(token_count(request, placement) * sizeof(int)) + aligned(accumulator);
  }
  return sum;
}

StepBuffers::Pinned::Pinned(size_t tokens)
    : inputs(tokens * sizeof(int)), targets(tokens * sizeof(int)), scale(sizeof(double)) {}

StepBuffers::StepBuffers(const BudgetRequest& request, const schedule::Placement& placement,
                         int rank, std::byte* losses, Region& region)
    : precision_(request.precision),
      embeds_(holds(request, placement, rank, &StageLayers::embedding)),
      has_head_(holds(request, placement, rank, &StageLayers::head)),
      tokens_(token_count(request, placement)),
      pinned_{Pinned(tokens_), Pinned(tokens_)} {
  const size_t accumulator = accumulator_bytes(precision_);
  if (embeds_) {
    inputs_ = region.take_bytes(tokens_ * sizeof(int));
    data_.inputs = reinterpret_cast<int*>(inputs_);
  }
  if (has_head_) {
    targets_ = region.take_bytes(tokens_ * sizeof(int));
    data_.targets = reinterpret_cast<int*>(targets_);
    scale_ = region.take_bytes(accumulator);
    data_.loss_scale = scale_;
    data_.losses = losses;
  }
}

void StepBuffers::upload(int64_t step, const DataSource& source, int replica, double loss_scale,
                         const Stream& compute) {
  if (!embeds_ && !has_head_) {
    return;
  }
  Pinned& pinned = pinned_[size_t(step % 2)];
  int* inputs = reinterpret_cast<int*>(pinned.inputs.data());
  int* targets = reinterpret_cast<int*>(pinned.targets.data());
  source.fill(step, replica, embeds_ ? inputs : nullptr, has_head_ ? targets : nullptr);
  if (embeds_) {
    copy_to_device(inputs_, inputs, tokens_ * sizeof(int), compute);
  }
  if (has_head_) {
    copy_to_device(targets_, targets, tokens_ * sizeof(int), compute);
    const float single = float(loss_scale);
    const size_t bytes = accumulator_bytes(precision_);
    std::memcpy(pinned.scale.data(),
                bytes == sizeof(double) ? static_cast<const void*>(&loss_scale) : &single, bytes);
    copy_to_device(scale_, pinned.scale.data(), bytes, compute);
  }
}

}  // namespace pipetrain
