#include "pipetrain/train/optimizer.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer_step.h"
#include "kernels/sum_of_squares.h"
#include "model/dispatch.h"
#include "pipetrain/device/check.h"
#include "pipetrain/device/event.h"
#include "pipetrain/error.h"
#include "pipetrain/train/reduction.h"
#include "train/contribution.h"

namespace pipetrain {
namespace {

constexpr size_t ring = 2;  // steps between an upload and the use of its host memory for another

void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const Stream& stream) {
  check(cudaMemcpyAsync(to, from, bytes, kind, stream.get()), "cudaMemcpyAsync");
}

template <typename T>
class AdamwOptimizer final : public Optimizer {
 public:
  using A = kernels::acc_t<T>;
  using Scalars = kernels::OptimizerScalars<A>;

  static size_t bytes(const Shape& shape) {
    const Contribution contribution(shape);
    const Contribution::Positions positions = contribution.positions();
    const auto array = [](size_t elements, size_t size) { return aligned(elements * size); };
    const size_t together = array(1, sizeof(Scalars)) +
                            array(contribution.ranks() * contribution.elements(), sizeof(A)) +
                            array(positions.blocks.size(), sizeof(int)) +
                            array(positions.losses.size(), sizeof(int)) +
                            array(positions.stops.size(), sizeof(int));
    if (!shape.every_backward) {
      return together;
    }
    const size_t blocks = contribution.block_positions(first_copy(shape), last_copy(shape)).size();
    return together + array(1, sizeof(Scalars)) + array(contribution.elements(), sizeof(A)) +
           array(blocks, sizeof(int));
  }

  AdamwOptimizer(const Shape& shape, const AdamwOptions& options, const ParameterStore& store,
                 std::span<std::byte> gradients, const Groups& groups, Region& region,
                 std::shared_ptr<Stream> reductions)
      : options_(options),
        store_(store),
        gradients_(gradients),
        job_(*groups.job),
        copies_(groups.copies),
        reduction_(store, shape.precision, {groups.copies, groups.tied}, std::move(reductions)),
        contribution_(shape),
        every_backward_(shape.every_backward),
        microbatches_(shape.microbatches),
        first_copy_(first_copy(shape)),
        pipeline_ranks_(shape.stages.size()),
        replicas_(size_t(shape.replicas)),
        rank_(size_t(shape.pipeline_rank) * replicas_ + size_t(shape.replica)),
        scalars_(region.take<Scalars>(1)),
        gathered_(region.take<A>(contribution_.ranks() * contribution_.elements())),
        uploads_(ring * sizeof(Upload)),
        results_(ring * result_bytes()) {
    if (job_.size() != int(contribution_.ranks()) || job_.rank() != int(rank_)) {
      throw InternalError("the optimizer's communicator is not that of the job");
    }
    if (!(store.sharding() == shape.sharding())) {
      throw InternalError("the optimizer's parameters are sharded in another way");
    }
    const auto on_device = [&](const std::vector<int>& values) {
      int* device = region.take<int>(values.size());
      check(cudaMemcpy(device, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice),
            "cudaMemcpy");
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // a copy may outlast its call
      return device;
    };
    const Contribution::Positions positions = contribution_.positions();
    step_.gathered = gathered_;
    step_.block_positions = on_device(positions.blocks);
    step_.blocks = int(positions.blocks.size());
    step_.loss_positions = on_device(positions.losses);
    step_.losses = int(positions.losses.size());
    step_.stop_positions = on_device(positions.stops);
    step_.stops = int(positions.stops.size());
    update_scalars_ = scalars_;
    if (every_backward_) {
      update_scalars_ = region.take<Scalars>(1);
      squares_ = region.take<A>(contribution_.elements());
      const std::vector<int> blocks = contribution_.block_positions(first_copy_, last_copy(shape));
      stage_.gathered = gathered_;
      stage_.block_positions = on_device(blocks);
      stage_.blocks = int(blocks.size());
      clear(update_scalars_, sizeof(Scalars));
    }
    clear(scalars_, sizeof(Scalars));
    clear(gathered_, contribution_.ranks() * contribution_.elements() * sizeof(A));
    for (const LocalParameter& local : store.parameters()) {
      if (local.state.count > 0) {
        clear(local.moment1, local.state.count * sizeof(A));
        clear(local.moment2, local.state.count * sizeof(A));
      }
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  std::byte* losses() const override { return reinterpret_cast<std::byte*>(own()); }

  void warm_up(const Stream& stream) override {
    constexpr int64_t no_step = -2;
    begin_step(stream);
    for (size_t stage = 0; stage < store_.stages().size(); ++stage) {
      reduction_.reduce(int(stage), no_step, stream);
    }
    reduction_.finish(no_step, stream);
    reduction_.gather_weights(stream);
    gather_of_stage(stream);
    gather(stream);
    stream.synchronize();
  }

  void reduce(int stage, int64_t step, const Stream& stream) override {
    reduction_.reduce(stage, step, stream);
  }

  void begin_step(const Stream& stream) override {
    check(cudaMemsetAsync(gradients_.data(), 0, gradients_.size(), stream.get()),
          "cudaMemsetAsync");
  }

  void submit(int64_t step, const StepInputs& inputs, const StepUpdate& update,
              const Stream& stream) override {
    if (!every_backward_ || update.microbatch == 0) {
      begin(step, inputs, stream);
    }
    reduction_.finish(step, stream);
    sum_squares(stream);
    if (every_backward_) {
      gather_of_stage(stream);
      kernels::optimizer_step(update_scalars_, stage_, 0, options_.beta1, options_.beta2,
                              stream.get());
    } else {
      gather(stream);
      kernels::optimizer_step(scalars_, step_, options_.grad_clip, options_.beta1, options_.beta2,
                              stream.get());
    }
    keep_weights(update.kept_weights, stream);
    change_weights(stream);
    reduction_.gather_weights(stream);
    if (every_backward_) {
      kernels::add(squares_, own(), contribution_.elements(), stream.get());
      if (update.microbatch + 1 < microbatches_) {
        begin_step(stream);  // the gradient of the next micro-batch is an update of its own
        return;
      }
      report_together(stream);
    }
    Slot& slot = slots_[size_t(step) % ring];
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
    std::vector<A> busy(pipeline_ranks_);
    const std::byte* from = result(step);
    std::memcpy(&scalars, from, sizeof(Scalars));
    std::memcpy(busy.data(), from + sizeof(Scalars), pipeline_ranks_ * sizeof(A));
    const int updates = every_backward_ ? microbatches_ : 1;
    return {step,
            double(scalars.loss) / updates,
            double(scalars.norm) / std::sqrt(double(updates)),
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

  // The ranks of the job that hold this rank's stages.
  static size_t first_copy(const Shape& shape) {
    return size_t(shape.pipeline_rank) * size_t(shape.replicas);
  }
  static size_t last_copy(const Shape& shape) { return first_copy(shape) + size_t(shape.replicas); }

  static void clear(void* data, size_t bytes) { check(cudaMemset(data, 0, bytes), "cudaMemset"); }
  static A* as_accumulators(std::byte* data) { return reinterpret_cast<A*>(data); }

  A* own() const { return gathered_ + rank_ * contribution_.elements(); }
  size_t result_bytes() const { return aligned(sizeof(Scalars) + pipeline_ranks_ * sizeof(A)); }
  std::byte* result(int64_t step) const {
    return results_.data() + size_t(step) % ring * result_bytes();
  }

  void begin(int64_t step, const StepInputs& inputs, const Stream& stream) {
    const Slot& slot = slots_[size_t(step) % ring];
    if (slot.pending) {
      throw InternalError(
          fmt::format("step {} is submitted, but the result of step {} was not taken", step,
                      slot.done.tag().step));
    }
    auto* upload = reinterpret_cast<Upload*>(uploads_.data()) + size_t(step) % ring;
    *upload = {A(inputs.learning_rate), A(inputs.stop ? 1 : 0), A(inputs.busy)};
    copy(&update_scalars_->learning_rate, &upload->learning_rate, sizeof(A), cudaMemcpyHostToDevice,
         stream);
    copy(own() + contribution_.stop(), &upload->stop, 2 * sizeof(A), cudaMemcpyHostToDevice,
         stream);
    if (every_backward_) {
      kernels::zero(squares_, contribution_.elements() * sizeof(A), stream.get());
    }
  }

  void gather(const Stream& stream) {
    job_.all_gather(gathered_, own(), contribution_.elements() * sizeof(A), stream);
  }

  // The copies of a stage skip an update together.
  void gather_of_stage(const Stream& stream) {
    if (every_backward_ && copies_ != nullptr) {
      copies_->all_gather(gathered_ + first_copy_ * contribution_.elements(), own(),
                          contribution_.elements() * sizeof(A), stream);
    }
  }

  // Sums of squares over all micro-batches of the step, losses and stop requests of all ranks.
  void report_together(const Stream& stream) {
    const size_t first = contribution_.squares();
    copy(own() + first, squares_ + first, (contribution_.length(int(rank_)) - first) * sizeof(A),
         cudaMemcpyDeviceToDevice, stream);
    gather(stream);
    kernels::optimizer_step(scalars_, step_, 0, options_.beta1, options_.beta2, stream.get());
    copy(&scalars_->step, &update_scalars_->step, sizeof(scalars_->step), cudaMemcpyDeviceToDevice,
         stream);
  }

  void keep_weights(int slot, const Stream& stream) {
    if (slot > 0) {
      const std::span<std::byte> kept = store_.weights(slot);
      copy(kept.data(), store_.weights(0).data(), kept.size(), cudaMemcpyDeviceToDevice, stream);
    }
  }

  void sum_squares(const Stream& stream) {
    const std::vector<Parameter>& table = store_.table();
    for (const Contribution::Squares& squares : contribution_.squares_of(int(rank_))) {
      const LocalParameter& local = *store_.find(table[squares.parameter].name);
      kernels::sum_of_squares(own() + squares.first,
                              as_accumulators(local.gradient) + squares.elements.first,
                              squares.elements.count, stream.get());
    }
  }

  void change_weights(const Stream& stream) {
    for (const LocalParameter& local : store_.parameters()) {
      const ElementRange state = without_padding(local.state, local.parameter->elements());
      if (state.count == 0) {
        continue;
      }
      const kernels::AdamwSettings settings{local.parameter->decayed ? options_.weight_decay : 0,
                                            options_.beta1, options_.beta2, options_.epsilon};
      const auto update_weight = [&](auto* weight, A* master) {
        kernels::adamw(weight, master, as_accumulators(local.moment1),
                       as_accumulators(local.moment2),
                       as_accumulators(local.gradient) + state.first, state.count, settings,
                       update_scalars_, stream.get());
      };
      if (local.separate_master()) {
        update_weight(reinterpret_cast<T*>(local.weight) + state.first,
                      as_accumulators(local.master));
      } else {
        A* weight = as_accumulators(local.weight) + state.first;
        update_weight(weight, weight);
      }
    }
  }

  void download(int64_t step, const Stream& stream) {
    std::byte* to = result(step);
    copy(to, scalars_, sizeof(Scalars), cudaMemcpyDeviceToHost, stream);
    for (size_t rank = 0; rank < pipeline_ranks_; ++rank) {
      copy(to + sizeof(Scalars) + rank * sizeof(A),
           gathered_ + rank * replicas_ * contribution_.elements() + contribution_.busy(),
           sizeof(A), cudaMemcpyDeviceToHost, stream);
    }
  }

  AdamwOptions options_;
  const ParameterStore& store_;
  std::span<std::byte> gradients_;
  Communicator& job_;
  Communicator* copies_;
  GradientReduction reduction_;
  Contribution contribution_;
  bool every_backward_;
  int microbatches_;
  size_t first_copy_;  // in the job: of the ranks with this rank's stages
  size_t pipeline_ranks_;
  size_t replicas_;
  size_t rank_;                        // in the job
  Scalars* scalars_;                   // of the whole model: what is reported
  Scalars* update_scalars_ = nullptr;  // what AdamW reads; every_backward: of this stage
  A* gathered_;                        // of all ranks, in rank order
  kernels::GatheredStep<A> step_;
  kernels::GatheredStep<A> stage_;  // every_backward: of this stage alone
  A* squares_ = nullptr;            // every_backward: contributions so far in this step, added
  PinnedBuffer uploads_;
  PinnedBuffer results_;
  std::array<Slot, ring> slots_;
};

}  // namespace

int Optimizer::Shape::rank_of_copy(int some_pipeline_rank, int copy) const {
  const int lower = mirrored
                        ? std::min(some_pipeline_rank, int(stages.size()) - 1 - some_pipeline_rank)
                        : some_pipeline_rank;
  const int of_copy = copy < replicas ? lower : int(stages.size()) - 1 - lower;
  return of_copy * replicas + copy % replicas;
}

Sharding Optimizer::Shape::sharding() const {
  const bool upper = mirrored && 2 * pipeline_rank >= int(stages.size());
  return {copies(), upper ? replicas + replica : replica, split_state};
}

std::vector<int> Optimizer::tied_ranks(const Shape& shape) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < shape.stages.size() && shape.config.tied_head; ++rank) {
    const auto& stages = shape.stages[rank];
    if (std::any_of(stages.begin(), stages.end(),
                    [](const StageLayers& stage) { return stage.embedding || stage.head; })) {
      ranks.push_back(int(rank));
    }
    if (shape.mirrored && !ranks.empty()) {
      break;
    }
  }
  return ranks;
}

size_t Optimizer::bytes(const Shape& shape) {
  return with_element_type(shape.precision,
                           [&]<typename T>() { return AdamwOptimizer<T>::bytes(shape); });
}

std::unique_ptr<Optimizer> Optimizer::make(const Shape& shape, const AdamwOptions& options,
                                           const ParameterStore& store,
                                           std::span<std::byte> gradients, const Groups& groups,
                                           Region& region, std::shared_ptr<Stream> reductions) {
  return with_element_type(shape.precision, [&]<typename T>() -> std::unique_ptr<Optimizer> {
    return std::make_unique<AdamwOptimizer<T>>(shape, options, store, gradients, groups, region,
                                               reductions);
  });
}

}  // namespace pipetrain
