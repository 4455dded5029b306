#include "pipetrain/train/reduction.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/elementwise.h"
#include "model/dispatch.h"
#include "pipetrain/error.h"

namespace pipetrain {

GradientReduction::GradientReduction(const ParameterStore& store, Precision precision,
                                     const Groups& groups, std::shared_ptr<Stream> stream)
    : store_(store),
      precision_(precision),
      accumulator_(accumulator_bytes(precision)),
      groups_(groups),
      stream_(std::move(stream)),
      produced_(store.stages().size()),
      reduced_step_(store.stages().size(), -1) {
  const Sharding& sharding = store.sharding();
  if (alone()) {
    return;
  }
  if (groups.copies == nullptr || groups.copies->size() != sharding.copies ||
      groups.copies->rank() != sharding.copy) {
    throw InternalError("the communicator of the reduction is not that of the copies");
  }
  if (!stream_) {
    stream_ = std::make_shared<Stream>(StreamPriority::high);
  }
}

size_t GradientReduction::shard_elements(const LocalUnit& unit) const {
  return unit.unit.elements / size_t(store_.sharding().copies);
}

std::byte* GradientReduction::shard(std::byte* run, const LocalUnit& unit,
                                    size_t element_bytes) const {
  return run + size_t(store_.sharding().copy) * shard_elements(unit) * element_bytes;
}

void GradientReduction::reduce_scatter(std::byte* run, const LocalUnit& unit) {
  groups_.copies->reduce_scatter_sum(shard(run, unit, accumulator_), run, shard_elements(unit),
                                     sum_type(), *stream_);
}

void GradientReduction::gather(std::byte* run, const LocalUnit& unit, size_t element_bytes,
                               const Stream& stream) {
  groups_.copies->all_gather(run, shard(run, unit, element_bytes),
                             shard_elements(unit) * element_bytes, stream);
}

void GradientReduction::reduce(int stage, int64_t step, const Stream& compute) {
  reduced_step_.at(size_t(stage)) = step;
  if (alone()) {
    return;
  }
  const StageLayers& layers = store_.stages()[size_t(stage)];
  const Tag tag = {step, stage, 0};
  Event& produced = produced_[size_t(stage)];
  produced.record(compute, tag);
  produced.wait(*stream_, tag);
  for (const LocalUnit& unit : store_.units()) {
    if (unit.unit.stage == stage) {
      reduce_scatter(unit.gradient, unit);
      if (!store_.sharding().split_state) {
        gather(unit.gradient, unit, accumulator_, *stream_);
      }
    } else if (unit.unit.stage < 0) {
      // Gathered when both ends are known.
      if (layers.embedding) {
        reduce_scatter(unit.gradient, unit);
      }
      if (layers.head) {
        reduce_scatter(unit.head_gradient, unit);
      }
    }
  }
}

// total = embedding's part + head's part, on both ends. A rank that holds one end has the other
// part 0, so all totals are sums of the same two numbers.
void GradientReduction::add_tied_parts(const LocalUnit& unit, const Stream& compute) {
  with_element_type(precision_, [&]<typename T>() {
    using A = kernels::acc_t<T>;
    kernels::add(reinterpret_cast<A*>(shard(unit.gradient, unit, accumulator_)),
                 reinterpret_cast<const A*>(shard(unit.head_gradient, unit, accumulator_)),
                 shard_elements(unit), compute.get());
  });
  if (groups_.tied != nullptr) {
    groups_.tied->all_reduce_sum(shard(unit.gradient, unit, accumulator_), shard_elements(unit),
                                 sum_type(), compute);
  }
}

void GradientReduction::finish(int64_t step, const Stream& compute) {
  for (size_t stage = 0; stage < reduced_step_.size(); ++stage) {
    if (reduced_step_[stage] != step) {
      throw InternalError(fmt::format(
          "step {}: the gradients of this rank's stage number {} were not reduced", step, stage));
    }
  }
  if (!alone()) {
    const Tag tag = {step, 0, 0};
    reduced_.record(*stream_, tag);
    reduced_.wait(compute, tag);
  }
  for (const LocalUnit& unit : store_.units()) {
    if (unit.unit.stage < 0) {
      add_tied_parts(unit, compute);
      if (!alone() && !store_.sharding().split_state) {
        gather(unit.gradient, unit, accumulator_, compute);
      }
    }
  }
}

void GradientReduction::gather_weights(const Stream& compute) {
  if (alone() || !store_.sharding().split_state) {
    return;
  }
  for (const LocalUnit& unit : store_.units()) {
    gather(unit.weight, unit, unit.weight_element, compute);
  }
}

}  // namespace pipetrain
