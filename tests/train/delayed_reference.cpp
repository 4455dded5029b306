#ifdef PIPETRAIN_HOST

#include "train/delayed_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer_step.h"
#include "kernels/sum_of_squares.h"
#include "model/dispatch.h"
#include "pipetrain/device/check.h"
#include "train/device_values.h"

namespace pipetrain::test {
namespace {

// Some layers of the model with all memory of their own.
template <typename T>
struct Part {
  using Scalars = kernels::OptimizerScalars<kernels::acc_t<T>>;

  Part(const Job& job, const StageLayers& part, const StepData& data)
      : layers(part),
        holder(job.request.model, {part}, job.request.precision),
        slot(activation_slot_bytes(job.request.model, job.request.shape, job.request.precision,
                                   part, job.request.slots)),
        workspace_memory(workspace_bytes(job.request.model, job.request.shape,
                                         job.request.precision, {part}, job.request.slots)),
        region(workspace_memory),
        workspace(make_gpt_workspace(job.request.model, job.request.shape, job.request.precision,
                                     {part}, job.request.slots, region)),
        stage(make_gpt_stage(job.request.model, job.request.shape, job.request.precision, part,
                             holder.store(), data, *workspace)),
        scalars(sizeof(Scalars)) {
    for (const LocalParameter& local : holder.store().parameters()) {
      for (std::byte* moment : {local.moment1, local.moment2}) {
        check(cudaMemset(moment, 0, local.parameter->padded_elements * sizeof(kernels::acc_t<T>)),
              "cudaMemset");
      }
    }
    check(cudaMemset(scalars.data(), 0, sizeof(Scalars)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  StageLayers layers;
  StoreHolder holder;
  Buffer slot;
  Buffer workspace_memory;
  Region region;
  std::unique_ptr<GptWorkspace, void (*)(GptWorkspace*)> workspace;
  std::unique_ptr<Stage> stage;
  Buffer scalars;
  std::vector<Buffer> versions;  // of the weights in use, by number
};

template <typename T>
class Reference {
  using A = kernels::acc_t<T>;
  using Scalars = kernels::OptimizerScalars<A>;

 public:
  Reference(const Job& job, const std::vector<StageLayers>& parts)
      : job_(job),
        microbatches_(job.batch.microbatches),
        tokens_(job.batch.tokens_per_step()),
        inputs_(tokens_ * sizeof(int)),
        targets_(tokens_ * sizeof(int)),
        scale_(sizeof(A)),
        losses_(size_t(microbatches_) * sizeof(A)),
        message_(message_bytes(job.request.model, job.request.shape, job.request.precision)),
        next_message_(message_.bytes()) {
    data_.inputs = reinterpret_cast<const int*>(inputs_.data());
    data_.targets = reinterpret_cast<const int*>(targets_.data());
    data_.loss_scale = scale_.data();
    data_.losses = losses_.data();
    const HuggingFaceWeights source(job.config.init, job.model.source->config);
    for (const StageLayers& part : parts) {
      parts_.push_back(std::make_unique<Part<T>>(job, part, data_));
      set_weights(parts_.back()->holder.store(), job.request.precision,
                  [&](const Parameter& parameter) { return source.values(parameter); });
      push_version(*parts_.back());
    }
  }

  EngineResult run_pipedream(int64_t steps) {
    EngineResult result{{}, {newest_weights()}, {}};
    const int p = int(parts_.size());
    std::vector<A> losses(size_t(microbatches_), 0);
    for (int64_t step = 0; step < steps; ++step) {
      begin_step(step, microbatches_);
      std::vector<A> squares;
      for (int i = 0; i < microbatches_; ++i) {
        std::vector<size_t> used;
        for (int s = 0; s < p; ++s) {
          used.push_back(size_t(step) * size_t(microbatches_) +
                         size_t(std::max(0, i - (p - 1 - s))));
        }
        clear_gradients();
        forward_and_backward(i, used);
        add(&squares, all_squares());
        for (const auto& part : parts_) {
          scalars_by(part.get(), part_squares(*part), {}, 0);
          update(part.get());
        }
      }
      result.steps.push_back(summary(step, squares, losses_of_step(), 0));
      result.steps.back().loss /= microbatches_;
      result.steps.back().grad_norm /= std::sqrt(double(microbatches_));
      result.steps.back().updates = (step + 1) * microbatches_;
      result.weights.push_back(newest_weights());
    }
    return result;
  }

  // The model is in one part.
  EngineResult run_2bw(int64_t steps) {
    EngineResult result{{}, {newest_weights()}, {}};
    Part<T>& model = *parts_.front();
    for (int64_t step = 0; step < steps; ++step) {
      begin_step(step, 1);
      clear_gradients();
      for (int i = 0; i < microbatches_; ++i) {
        const int64_t k = step * microbatches_ + i + 1;
        forward_and_backward(i, {size_t(std::max<int64_t>((k - 1) / microbatches_ - 1, 0))});
      }
      for (const LocalParameter& local : model.holder.store().parameters()) {
        if (local.parameter->tied) {
          kernels::add(reinterpret_cast<A*>(local.gradient),
                       reinterpret_cast<const A*>(local.head_gradient),
                       local.parameter->padded_elements, stream_.get());
        }
      }
      const double limit = job_.config.grad_clip.value();
      result.steps.push_back(summary(step, all_squares(), losses_of_step(), limit));
      scalars_by(&model, all_squares(), {}, limit);
      update(&model);
      result.weights.push_back(newest_weights());
    }
    return result;
  }

 private:
  template <typename Value>
  static std::vector<Value> download(const std::byte* data, size_t count) {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<Value> values(count);
    check(cudaMemcpy(values.data(), data, count * sizeof(Value), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return values;
  }
  template <typename Value>
  static void upload(std::byte* data, const std::vector<Value>& values) {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemcpy(data, values.data(), values.size() * sizeof(Value), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()),
          "cudaMemcpyAsync");
  }

  void push_version(Part<T>& part) {
    const std::span<std::byte> weights = part.holder.store().weights(0);
    part.versions.emplace_back(weights.size());
    copy(part.versions.back().data(), weights.data(), weights.size());
  }
  void use_version(const Part<T>& part, size_t number) const {
    const std::span<std::byte> weights = part.holder.store().weights(0);
    copy(weights.data(), part.versions.at(number).data(), weights.size());
  }

  // updates: among which the targets of the step are shared out.
  void begin_step(int64_t step, int updates) {
    std::vector<int> inputs(tokens_);
    std::vector<int> targets(tokens_);
    job_.batches->fill(step, 0, inputs.data(), targets.data());
    upload(inputs_.data(), inputs);
    upload(targets_.data(), targets);
    const size_t valid = count_valid_targets(targets.data(), tokens_) / size_t(updates);
    upload(scale_.data(), std::vector<A>{A(1.0 / double(valid))});
  }

  void clear_gradients() const {
    for (const auto& part : parts_) {
      const std::span<std::byte> gradients = part->holder.gradients();
      kernels::zero(gradients.data(), gradients.size(), stream_.get());
    }
  }

  // used: by part, the number of the version.
  void forward_and_backward(int microbatch, const std::vector<size_t>& used) {
    for (size_t s = 0; s < parts_.size(); ++s) {
      Part<T>& part = *parts_[s];
      use_version(part, used[s]);
      if (!part.layers.embedding) {
        part.stage->load_input(part.slot.data(), message_.data(), stream_);
      }
      part.stage->forward(microbatch, part.slot.data(),
                          part.layers.head ? nullptr : next_message_.data(), true, stream_);
      copy(message_.data(), next_message_.data(), message_.bytes());
    }
    for (size_t s = parts_.size(); s-- > 0;) {
      Part<T>& part = *parts_[s];
      if (!part.layers.head) {
        part.stage->load_output_gradient(part.slot.data(), nullptr, message_.data(), stream_);
      }
      part.stage->backward(microbatch, part.slot.data(),
                           part.layers.embedding ? nullptr : next_message_.data(), stream_);
      copy(message_.data(), next_message_.data(), message_.bytes());
    }
  }

  std::vector<A> losses_of_step() const {
    return download<A>(losses_.data(), size_t(microbatches_));
  }

  std::vector<A> squares_of(const LocalParameter& local) const {
    const size_t elements = local.parameter->elements();
    const size_t blocks = kernels::norm_blocks(elements);
    const Buffer sums(blocks * sizeof(A));
    kernels::sum_of_squares(reinterpret_cast<A*>(sums.data()),
                            reinterpret_cast<const A*>(local.gradient), elements, stream_.get());
    return download<A>(sums.data(), blocks);
  }
  std::vector<A> part_squares(const Part<T>& part) const {
    std::vector<A> all;
    for (const LocalParameter& local : part.holder.store().parameters()) {
      const std::vector<A> squares = squares_of(local);
      all.insert(all.end(), squares.begin(), squares.end());
    }
    return all;
  }
  // In order of the parameter table.
  std::vector<A> all_squares() const {
    std::vector<A> all;
    for (const Parameter& parameter : parts_.front()->holder.store().table()) {
      for (const auto& part : parts_) {
        if (const LocalParameter* local = part->holder.store().find(parameter.name)) {
          const std::vector<A> squares = squares_of(*local);
          all.insert(all.end(), squares.begin(), squares.end());
        }
      }
    }
    return all;
  }
  static void add(std::vector<A>* sum, const std::vector<A>& more) {
    sum->resize(more.size(), 0);
    for (size_t i = 0; i < more.size(); ++i) {
      (*sum)[i] += more[i];
    }
  }

  // What AdamW reads, and norm and loss.
  void run_step_kernel(std::byte* scalars, const std::vector<A>& squares,
                       const std::vector<A>& losses, double limit) const {
    std::vector<A> gathered = squares;
    gathered.insert(gathered.end(), losses.begin(), losses.end());
    std::vector<int> positions;
    for (size_t i = 0; i < gathered.size(); ++i) {
      positions.push_back(int(i));
    }
    const Buffer values(gathered.size() * sizeof(A));
    const Buffer places(positions.size() * sizeof(int));
    upload(values.data(), gathered);
    upload(places.data(), positions);
    const int* first = reinterpret_cast<const int*>(places.data());
    const kernels::GatheredStep<A> step{.gathered = reinterpret_cast<const A*>(values.data()),
                                        .block_positions = first,
                                        .blocks = int(squares.size()),
                                        .loss_positions = first + squares.size(),
                                        .losses = int(losses.size()),
                                        .stop_positions = nullptr,
                                        .stops = 0};
    kernels::optimizer_step(reinterpret_cast<Scalars*>(scalars), step, limit, job_.config.beta1,
                            job_.config.beta2, stream_.get());
    stream_.synchronize();
  }
  void scalars_by(Part<T>* part, const std::vector<A>& squares, const std::vector<A>& losses,
                  double limit) const {
    Scalars scalars = download<Scalars>(part->scalars.data(), 1).front();
    scalars.learning_rate = A(job_.config.learning_rate);
    upload(part->scalars.data(), std::vector<Scalars>{scalars});
    run_step_kernel(part->scalars.data(), squares, losses, limit);
  }
  StepResult summary(int64_t step, const std::vector<A>& squares, const std::vector<A>& losses,
                     double limit) const {
    const Buffer scalars(sizeof(Scalars));
    upload(scalars.data(), std::vector<Scalars>(1));
    run_step_kernel(scalars.data(), squares, losses, limit);
    const Scalars values = download<Scalars>(scalars.data(), 1).front();
    return {step, double(values.loss), double(values.norm), values.skip != 0, false, step + 1, {}};
  }

  // The newest version becomes the next one.
  void update(Part<T>* part) {
    use_version(*part, part->versions.size() - 1);
    const auto* scalars = reinterpret_cast<const Scalars*>(part->scalars.data());
    for (const LocalParameter& local : part->holder.store().parameters()) {
      const kernels::AdamwSettings settings{local.parameter->decayed ? job_.config.weight_decay : 0,
                                            job_.config.beta1, job_.config.beta2,
                                            job_.config.epsilon};
      const auto adamw = [&](auto* weight, std::byte* master) {
        kernels::adamw(weight, reinterpret_cast<A*>(master), reinterpret_cast<A*>(local.moment1),
                       reinterpret_cast<A*>(local.moment2),
                       reinterpret_cast<const A*>(local.gradient), local.parameter->elements(),
                       settings, scalars, stream_.get());
      };
      if (local.separate_master()) {
        adamw(reinterpret_cast<T*>(local.weight), local.master);
      } else {
        adamw(reinterpret_cast<A*>(local.weight), local.weight);
      }
    }
    push_version(*part);
  }

  Tensors newest_weights() const {
    Tensors all;
    for (const auto& part : parts_) {
      use_version(*part, part->versions.size() - 1);
      stream_.synchronize();
      for (const LocalParameter& local : part->holder.store().parameters()) {
        const size_t count = local.parameter->elements();
        all[local.parameter->name] =
            local.separate_master() ? device_bf16_values(local.weight, count)
                                    : device_values(local.weight, count, job_.request.precision);
      }
    }
    return all;
  }

  const Job& job_;
  int microbatches_;
  size_t tokens_;
  Stream stream_;
  Buffer inputs_;
  Buffer targets_;
  Buffer scale_;
  Buffer losses_;
  Buffer message_;
  Buffer next_message_;
  StepData data_;
  std::vector<std::unique_ptr<Part<T>>> parts_;
};

}  // namespace

EngineResult delayed_reference(const TrainConfig& config, int ranks, int64_t steps) {
  const Job job = make_job(config, ranks, 0);
  const bool two_versions = config.schedule == "pipedream-2bw";
  return with_element_type(job.request.precision, [&]<typename T>() {
    return two_versions ? Reference<T>(job, partition(job.request.model.layers, 1)).run_2bw(steps)
                        : Reference<T>(job, job.request.stages).run_pipedream(steps);
  });
}

}  // namespace pipetrain::test

#endif  // PIPETRAIN_HOST
