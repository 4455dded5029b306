#include "pipetrain/train/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/comm/warm_up.h"
#include "pipetrain/device/check.h"
#include "pipetrain/train/huggingface.h"
#include "pipetrain/train/weights.h"

namespace pipetrain {
namespace {

constexpr int max_ctas = 8;  // thread blocks that NCCL may take from the kernels

std::vector<int> job_ranks(const Grid& grid, const std::vector<int>& pipeline_ranks) {
  std::vector<int> ranks;
  for (const int rank : pipeline_ranks) {
    ranks.push_back(grid.peer(rank));
  }
  return ranks;
}

}  // namespace

Engine::Engine(const Job& job, Control& control, Watchdog* watchdog)
    : job_(job),
      watchdog_(watchdog),
      weights_(job.budget.weights),
      gradients_(job.budget.gradients),
      moments_(job.budget.optimizer),
      activation_memory_(job.budget.activation_slots),
      gradient_slot_memory_(job.budget.gradient_slots),
      channel_memory_(job.budget.channel_slots),
      workspace_memory_(job.budget.workspace),
      step_memory_(job.budget.step_data) {
  const schedule::Placement& placement = job.lowered.placement;
  const int rank = job.grid.pipeline_rank();
  const std::vector<StageLayers> held = held_stages(job.request, placement, rank);

  Region weights(weights_);
  Region gradients(gradients_);
  Region moments(moments_);
  store_ = std::make_unique<ParameterStore>(job.request.model, held, job.request.precision, weights,
                                            gradients, moments);

  connect(control);

  Region step_data(step_memory_);
  optimizer_ = Optimizer::make(optimizer_shape(job.request, placement, rank),
                               {.beta1 = job.config.beta1,
                                .beta2 = job.config.beta2,
                                .epsilon = job.config.epsilon,
                                .weight_decay = job.config.weight_decay,
                                .grad_clip = job.config.grad_clip},
                               *store_, std::span(gradients_.data(), gradients_.bytes()),
                               {.pipeline = pipeline_.get(), .tied = tied_.get()}, step_data);
  step_buffers_ =
      std::make_unique<StepBuffers>(job.request, placement, rank, optimizer_->losses(), step_data);

  Region workspace(workspace_memory_);
  workspace_ = make_gpt_workspace(job.request.model, job.request.shape, job.request.precision, held,
                                  workspace);
  std::map<int, Stage*> stages;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    if (placement.holds(rank, stage)) {
      stages_.push_back(make_gpt_stage(job.request.model, job.request.shape, job.request.precision,
                                       job.request.stages[size_t(stage)], *store_,
                                       step_buffers_->data(), *workspace_));
      stages[stage] = stages_.back().get();
    }
  }

  Region activations(activation_memory_);
  activations_ =
      std::make_unique<Pool>("activation slots", job.lowered.activation_slots[size_t(rank)],
                             activation_slot_bytes(job.request, placement, rank), activations);
  Region gradient_slots(gradient_slot_memory_);
  gradient_slots_ =
      std::make_unique<Pool>("gradient slots", job.lowered.gradient_slots[size_t(rank)],
                             gradient_slot_bytes(job.request, placement, rank), gradient_slots);
  activations_->poison();
  gradient_slots_->poison();

  executor_ = std::make_unique<Executor>(
      job.lowered, rank, std::move(stages), *exchange_, *activations_, *gradient_slots_, compute_,
      Executor::Mode::training,
      StepHooks{.reduce_gradients = [](int) {},  // one replica
                .optimizer_step = [this] { optimizer_->submit(step_, inputs_, compute_); }},
      watchdog);
  if (watchdog != nullptr) {
    watchdog->set_error_probe([this] {
      ncclResult_t result = exchange_->async_error();
      result = result == ncclSuccess ? pipeline_->async_error() : result;
      return result == ncclSuccess ? std::string()
                                   : fmt::format("NCCL: {}", ncclGetErrorString(result));
    });
  }
}

Engine::~Engine() {
  if (watchdog_ != nullptr) {
    watchdog_->clear();
  }
}

// All communicators, in one order that is the same on all ranks, each used once: NCCL connects at
// the first use.
void Engine::connect(Control& control) {
  const Watchdog::HostPhase phase(watchdog_,
                                  fmt::format("rank {} connects its channels", control.rank()));
  std::vector<int> everyone(size_t(job_.grid.pipeline));
  for (size_t i = 0; i < everyone.size(); ++i) {
    everyone[i] = int(i);
  }
  pipeline_ = std::make_unique<Communicator>(control, job_ranks(job_.grid, everyone), max_ctas);
  warm_up(*pipeline_, workspace_memory_.data(), alignment, compute_);

  const std::vector<int> ends = Optimizer::tied_ranks(
      optimizer_shape(job_.request, job_.lowered.placement, job_.grid.pipeline_rank()));
  if (ends.size() == 2 &&
      std::find(ends.begin(), ends.end(), job_.grid.pipeline_rank()) != ends.end()) {
    tied_ = std::make_unique<Communicator>(control, job_ranks(job_.grid, ends), max_ctas);
    check(cudaMemsetAsync(gradients_.data(), 0, gradients_.bytes(), compute_.get()),
          "cudaMemsetAsync");
    for (const LocalParameter& local : store_->parameters()) {
      if (local.parameter->tied) {
        tied_->all_reduce_sum(local.gradient, local.parameter->padded_elements,
                              job_.request.precision == Precision::fp64 ? ncclFloat64 : ncclFloat32,
                              compute_);
      }
    }
    compute_.synchronize();
  }
  Region channels(channel_memory_);
  exchange_ = std::make_unique<Exchange>(
      job_.lowered, job_.grid, control,
      message_bytes(job_.request.model, job_.request.shape, job_.request.precision), channels);
}

void Engine::set_initial_weights() {
  const Job& job = job_;
  if (job.config.init.empty()) {
    set_weights(*store_, job.request.precision, [&job](const Parameter& parameter) {
      return initial_values(parameter, job.request.model, job.config.seed);
    });
    return;
  }
  const HuggingFaceWeights source(job.config.init, job.request.model);
  set_weights(*store_, job.request.precision,
              [&source](const Parameter& parameter) { return source.values(parameter); });
}

void Engine::submit(int64_t step, const StepInputs& inputs) {
  step_ = step;
  inputs_ = inputs;
  optimizer_->begin_step(compute_);
  step_buffers_->upload(step, *job_.batches, job_.grid.replica(), compute_);
  executor_->run_step(step);
}

}  // namespace pipetrain
