#include "pipetrain/train/optimizer.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer_step.h"
#include "kernels/sum_of_squares.h"
#include "model/dispatch.h"
#include "pipetrain/device/check.h"
#include "pipetrain/device/event.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

constexpr size_t ring = 2;  // steps between an upload and the use of its host memory for another

// What each rank contributes to the all-gather, in elements of the accumulator type:
// [losses][stop][busy][sums of squares of the parameters that it counts]. All contributions are as
// long as the longest.
class Contribution {
 public:
  explicit Contribution(const Optimizer::Shape& shape)
      : ranks_(shape.stages.size()), losses_(size_t(shape.microbatches)) {
    const std::vector<Parameter> table = parameter_table(shape.config);
    rows_.resize(table.size());
    size_t longest = 0;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      size_t next = busy() + 1;
      for (const size_t index : held_parameters(table, shape.stages[rank])) {
        if (rows_[index].blocks == 0) {  // the lowest rank that holds a parameter counts it
          rows_[index] = {rank, next, kernels::norm_blocks(table[index].elements())};
          next += rows_[index].blocks;
        }
      }
      longest = std::max(longest, next);
      const auto& stages = shape.stages[rank];
      if (std::any_of(stages.begin(), stages.end(), [](const auto& s) { return s.head; })) {
        head_rank_ = rank;
      }
    }
    elements_ = aligned(longest * sizeof(float)) / sizeof(float);
  }

  size_t elements() const { return elements_; }
  size_t stop() const { return losses_; }
  size_t busy() const { return losses_ + 1; }
  bool counts(size_t rank, size_t parameter) const { return rows_[parameter].rank == rank; }
  size_t first_block(size_t parameter) const { return rows_[parameter].first; }
  size_t blocks() const {
    size_t sum = 0;
    for (const Row& row : rows_) {
      sum += row.blocks;
    }
    return sum;
  }

  // Positions in the contributions of all ranks: squares in (tensor, block) order, then losses in
  // micro-batch order, then the stop requests.
  std::vector<int> positions() const {
    std::vector<int> result;
    for (const Row& row : rows_) {
      append(&result, row.rank, row.first, row.blocks);
    }
    append(&result, head_rank_, 0, losses_);
    for (size_t rank = 0; rank < ranks_; ++rank) {
      append(&result, rank, stop(), 1);
    }
    return result;
  }

 private:
  struct Row {
    size_t rank = 0;
    size_t first = 0;
    size_t blocks = 0;
  };

  void append(std::vector<int>* positions, size_t rank, size_t first, size_t count) const {
    for (size_t i = 0; i < count; ++i) {
      positions->push_back(int(rank * elements_ + first + i));
    }
  }

  size_t ranks_;
  size_t losses_;
  std::vector<Row> rows_;  // of the parameter table
  size_t head_rank_ = 0;
  size_t elements_ = 0;
};

void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const Stream& stream) {
  check(cudaMemcpyAsync(to, from, bytes, kind, stream.get()), "cudaMemcpyAsync");
}

template <typename T>
class AdamwOptimizer final : public Optimizer {
 public:
  using A = kernels::acc_t<T>;
  using Scalars = kernels::OptimizerScalars<A>;

  static size_t bytes(const Contribution& contribution, size_t ranks) {
    return aligned(sizeof(Scalars)) + aligned(ranks * contribution.elements() * sizeof(A)) +
           aligned(contribution.positions().size() * sizeof(int));
  }

  AdamwOptimizer(const Shape& shape, const AdamwOptions& options, const ParameterStore& store,
                 std::span<std::byte> gradients, const Groups& groups, Region& region)
      : options_(options),
        store_(store),
        gradients_(gradients),
        groups_(groups),
        contribution_(shape),
        ranks_(shape.stages.size()),
        rank_(size_t(shape.pipeline_rank)),
        scalars_(region.take<Scalars>(1)),
        gathered_(region.take<A>(ranks_ * contribution_.elements())),
        uploads_(ring * sizeof(Upload)),
        results_(ring * result_bytes()) {
    if (groups.pipeline->size() != int(ranks_) || groups.pipeline->rank() != int(rank_)) {
      throw InternalError("the optimizer's communicator is not that of the pipeline");
    }
    const std::vector<int> positions = contribution_.positions();
    int* device_positions = region.take<int>(positions.size());
    check(cudaMemcpy(device_positions, positions.data(), positions.size() * sizeof(int),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
    step_.gathered = gathered_;
    step_.block_positions = device_positions;
    step_.blocks = int(contribution_.blocks());
    step_.loss_positions = step_.block_positions + step_.blocks;
    step_.losses = shape.microbatches;
    step_.stop_positions = step_.loss_positions + step_.losses;
    step_.stops = int(ranks_);
    clear(scalars_, sizeof(Scalars));
    clear(gathered_, ranks_ * contribution_.elements() * sizeof(A));
    for (const LocalParameter& local : store.parameters()) {
      clear(local.moment1, local.parameter->padded_elements * sizeof(A));
      clear(local.moment2, local.parameter->padded_elements * sizeof(A));
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  std::byte* losses() const override { return reinterpret_cast<std::byte*>(own()); }

  void begin_step(const Stream& stream) override {
    check(cudaMemsetAsync(gradients_.data(), 0, gradients_.size(), stream.get()),
          "cudaMemsetAsync");
  }

  void submit(int64_t step, const StepInputs& inputs, const Stream& stream) override {
    Slot& slot = slots_[size_t(step) % ring];
    if (slot.pending) {
      throw InternalError(
          fmt::format("step {} is submitted, but the result of step {} was not taken", step,
                      slot.done.tag().step));
    }
    auto* upload = reinterpret_cast<Upload*>(uploads_.data()) + size_t(step) % ring;
    *upload = {A(inputs.learning_rate), A(inputs.stop ? 1 : 0), A(inputs.busy)};
    copy(&scalars_->learning_rate, &upload->learning_rate, sizeof(A), cudaMemcpyHostToDevice,
         stream);
    copy(own() + contribution_.stop(), &upload->stop, 2 * sizeof(A), cudaMemcpyHostToDevice,
         stream);
    add_tied_parts(stream);
    sum_squares(stream);
    groups_.pipeline->all_gather(gathered_, own(), contribution_.elements() * sizeof(A), stream);
    kernels::optimizer_step(scalars_, step_, options_.grad_clip, options_.beta1, options_.beta2,
                            stream.get());
    update(stream);
    download(step, stream);
    slot.done.record(stream, {step, 0, 0});
    slot.pending = true;
  }

  StepResult wait_result(int64_t step) override {
    Slot& slot = slots_[size_t(step) % ring];
    if (!slot.pending || slot.done.tag().step != step) {
      throw InternalError(fmt::format("the result of step {} was taken or never submitted", step));
    }
    slot.done.synchronize();
    slot.pending = false;
    Scalars scalars;
    std::vector<A> busy(ranks_);
    const std::byte* from = result(step);
    std::memcpy(&scalars, from, sizeof(Scalars));
    std::memcpy(busy.data(), from + sizeof(Scalars), ranks_ * sizeof(A));
    return {step,
            double(scalars.loss),
            double(scalars.norm),
            scalars.skip != 0,
            scalars.stop != 0,
            scalars.step,
            std::vector<double>(busy.begin(), busy.end())};
  }

 private:
  // In pinned memory. stop and busy lie together, as in a contribution.
  struct Upload {
    A learning_rate;
    A stop;
    A busy;
  };
  struct Slot {
    Event done;
    bool pending = false;  // the result was not taken yet
  };

  static void clear(void* data, size_t bytes) { check(cudaMemset(data, 0, bytes), "cudaMemset"); }
  static A* as_accumulators(std::byte* data) { return reinterpret_cast<A*>(data); }

  A* own() const { return gathered_ + rank_ * contribution_.elements(); }
  size_t result_bytes() const { return aligned(sizeof(Scalars) + ranks_ * sizeof(A)); }
  std::byte* result(int64_t step) const {
    return results_.data() + size_t(step) % ring * result_bytes();
  }

  // total = embedding's part + head's part, on both ends. A rank that holds one end has the other
  // part 0, so all totals are sums of the same two numbers.
  void add_tied_parts(const Stream& stream) {
    for (const LocalParameter& local : store_.parameters()) {
      if (!local.parameter->tied) {
        continue;
      }
      const size_t n = local.parameter->elements();
      kernels::add(as_accumulators(local.gradient), as_accumulators(local.head_gradient), n,
                   stream.get());
      if (groups_.tied != nullptr) {
        groups_.tied->all_reduce_sum(local.gradient, n, sizeof(A) == 8 ? ncclFloat64 : ncclFloat32,
                                     stream);
      }
    }
  }

  void sum_squares(const Stream& stream) {
    for (const LocalParameter& local : store_.parameters()) {
      if (contribution_.counts(rank_, local.table_index)) {
        kernels::sum_of_squares(own() + contribution_.first_block(local.table_index),
                                as_accumulators(local.gradient), local.parameter->elements(),
                                stream.get());
      }
    }
  }

  void update(const Stream& stream) {
    for (const LocalParameter& local : store_.parameters()) {
      const kernels::AdamwSettings settings{local.parameter->decayed ? options_.weight_decay : 0,
                                            options_.beta1, options_.beta2, options_.epsilon};
      const auto update_weight = [&](auto* weight) {
        kernels::adamw(weight, as_accumulators(local.master), as_accumulators(local.moment1),
                       as_accumulators(local.moment2), as_accumulators(local.gradient),
                       local.parameter->elements(), settings, scalars_, stream.get());
      };
      if (local.weight == local.master) {
        update_weight(as_accumulators(local.weight));
      } else {
        update_weight(reinterpret_cast<T*>(local.weight));
      }
    }
  }

  void download(int64_t step, const Stream& stream) {
    std::byte* to = result(step);
    copy(to, scalars_, sizeof(Scalars), cudaMemcpyDeviceToHost, stream);
    for (size_t rank = 0; rank < ranks_; ++rank) {
      copy(to + sizeof(Scalars) + rank * sizeof(A),
           gathered_ + rank * contribution_.elements() + contribution_.busy(), sizeof(A),
           cudaMemcpyDeviceToHost, stream);
    }
  }

  AdamwOptions options_;
  const ParameterStore& store_;
  std::span<std::byte> gradients_;
  Groups groups_;
  Contribution contribution_;
  size_t ranks_;
  size_t rank_;
  Scalars* scalars_;
  A* gathered_;  // of all ranks, in rank order
  kernels::GatheredStep<A> step_;
  PinnedBuffer uploads_;
  PinnedBuffer results_;
  std::array<Slot, ring> slots_;
};

}  // namespace

std::vector<int> Optimizer::tied_ranks(const Shape& shape) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < shape.stages.size() && shape.config.tied_head; ++rank) {
    const auto& stages = shape.stages[rank];
    if (std::any_of(stages.begin(), stages.end(),
                    [](const StageLayers& stage) { return stage.embedding || stage.head; })) {
      ranks.push_back(int(rank));
    }
  }
  return ranks;
}

size_t Optimizer::bytes(const Shape& shape) {
  return with_element_type(shape.precision, [&]<typename T>() {
    return AdamwOptimizer<T>::bytes(Contribution(shape), shape.stages.size());
  });
}

std::unique_ptr<Optimizer> Optimizer::make(const Shape& shape, const AdamwOptions& options,
                                           const ParameterStore& store,
                                           std::span<std::byte> gradients, const Groups& groups,
                                           Region& region) {
  return with_element_type(shape.precision, [&]<typename T>() -> std::unique_ptr<Optimizer> {
    return std::make_unique<AdamwOptimizer<T>>(shape, options, store, gradients, groups, region);
  });
}

}  // namespace pipetrain
