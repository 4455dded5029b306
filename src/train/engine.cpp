#include "pipetrain/train/engine.h"

#include <fmt/format.h>

#include <numeric>

#include "pipetrain/comm/channel.h"
#include "pipetrain/train/huggingface.h"
#include "pipetrain/train/weights.h"

namespace pipetrain {
namespace {

constexpr int max_ctas = 8;  // thread blocks that NCCL may take from the kernels

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
  const Optimizer::Shape shape = optimizer_shape(job.request, placement, rank, job.grid.replica());
  store_ = std::make_unique<ParameterStore>(job.request.model, held, job.request.precision, weights,
                                            gradients, moments, shape.sharding(),
                                            job.lowered.weight_versions[size_t(rank)]);

  const Watchdog::HostPhase phase(watchdog,
                                  fmt::format("rank {} connects its channels", control.rank()));
  control.barrier();  // nobody waits inside NCCL for one that still allocates
  make_groups(control);
  Region step_data(step_memory_);
  const std::shared_ptr<Stream> one_stream =
      transfers_need_one_stream() ? std::make_shared<Stream>(StreamPriority::high) : nullptr;
  optimizer_ =
      Optimizer::make(shape,
                      {.beta1 = job.config.beta1,
                       .beta2 = job.config.beta2,
                       .epsilon = job.config.epsilon,
                       .weight_decay = job.config.weight_decay,
                       .grad_clip = job.config.grad_clip.value()},
                      *store_, std::span(gradients_.data(), gradients_.bytes()),
                      {.job = everyone_.get(), .tied = tied_.get(), .copies = copies_.get()},
                      step_data, one_stream);
  optimizer_->warm_up(compute_);
  Region channels(channel_memory_);
  exchange_ = std::make_unique<Exchange>(
      job.exchanged(), job.grid, control,
      message_bytes(job.request.model, job.request.shape, job.request.precision), channels,
      one_stream, watchdog);
  step_buffers_ =
      std::make_unique<StepBuffers>(job.request, placement, rank, optimizer_->losses(), step_data);

  Region workspace(workspace_memory_);
  const Executor::Stages stages = make_stages(WorkspaceUse::everything, workspace, workspace_);
  const Executor::Stages beside =
      job.lowered.has_pairs(rank) ? make_stages(WorkspaceUse::forward, workspace, beside_workspace_)
                                  : Executor::Stages();
  std::map<int, int> numbers;  // global stage -> its place among the stages of this rank
  for (const auto& [stage, made] : stages) {
    numbers.emplace(stage, int(numbers.size()));
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
      job.lowered, rank, stages, *exchange_, *activations_, *gradient_slots_, compute_,
      Executor::Mode::training,
      StepHooks{.reduce_gradients =
                    [this, numbers](int stage) {
                      optimizer_->reduce(numbers.at(stage), step_, compute_);
                    },
                .optimizer_step =
                    [this](const schedule::LoweredAction& entry) {
                      optimizer_->submit(
                          step_, inputs_,
                          {.microbatch = entry.action.microbatch, .kept_weights = entry.weights},
                          compute_);
                    }},
      watchdog, beside);
  if (job.evaluation) {
    evaluator_ = std::make_unique<Evaluator>(*job.evaluation, job.request, job.grid,
                                             Evaluator::Parts{.store = *store_,
                                                              .workspace = *workspace_,
                                                              .activations = *activations_,
                                                              .gradient_slots = *gradient_slots_,
                                                              .exchange = *exchange_,
                                                              .compute = compute_,
                                                              .watchdog = watchdog},
                                             step_data);
  }
  if (watchdog != nullptr) {
    watchdog->set_error_probe([this] {
      ncclResult_t result = exchange_->async_error();
      for (const Communicator* group : {everyone_.get(), copies_.get(), tied_.get()}) {
        result = result == ncclSuccess && group != nullptr ? group->async_error() : result;
      }
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

Executor::Stages Engine::make_stages(WorkspaceUse use, Region& region, Workspace& workspace) {
  const BudgetRequest& request = job_.request;
  const schedule::Placement& placement = job_.lowered.placement;
  const int rank = job_.grid.pipeline_rank();
  workspace = make_gpt_workspace(request.model, request.shape, request.precision,
                                 held_stages(request, placement, rank), request.slots, region, use);
  Executor::Stages stages;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    for (int slot = 0; slot < store_->versions() && placement.holds(rank, stage); ++slot) {
      stages_.push_back(make_gpt_stage(request.model, request.shape, request.precision,
                                       request.stages[size_t(stage)], store_->with_weights(slot),
                                       step_buffers_->data(), *workspace));
      stages[stage].push_back(stages_.back().get());
    }
  }
  return stages;
}

// All ranks create the groups they share in this order.
void Engine::make_groups(Control& control) {
  const Grid& grid = job_.grid;
  const Optimizer::Shape shape =
      optimizer_shape(job_.request, job_.lowered.placement, grid.pipeline_rank(), grid.replica());
  std::vector<int> ranks(size_t(control.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  everyone_ = std::make_unique<Communicator>(control, ranks, max_ctas);

  if (shape.copies() > 1) {
    ranks.clear();
    for (int copy = 0; copy < shape.copies(); ++copy) {
      ranks.push_back(shape.rank_of_copy(grid.pipeline_rank(), copy));
    }
    copies_ = std::make_unique<Communicator>(control, ranks, max_ctas);
  }
  const std::vector<int> ends = Optimizer::tied_ranks(shape);
  if (ends.size() == 2 && (ends[0] == grid.pipeline_rank() || ends[1] == grid.pipeline_rank())) {
    ranks = {grid.peer(ends[0]), grid.peer(ends[1])};
    tied_ = std::make_unique<Communicator>(control, ranks, max_ctas);
  }
}

void Engine::set_initial_weights() {
  const Job& job = job_;
  if (job.config.init.empty()) {
    set_weights(*store_, job.request.precision, [&job](const Parameter& parameter) {
      return initial_values(parameter, job.request.model, job.config.seed);
    });
    return;
  }
  const HuggingFaceWeights source(job.config.init, job.model.source->config);
  set_weights(*store_, job.request.precision,
              [&source](const Parameter& parameter) { return source.values(parameter); });
}

void Engine::submit(int64_t step, const StepInputs& inputs) {
  step_ = step;
  inputs_ = inputs;
  optimizer_->begin_step(compute_);
  const size_t valid = std::max<size_t>(job_.batches->valid_targets(step), 1);
  // An update of one micro-batch alone takes the mean over its share of the targets.
  const bool alone = job_.lowered.update == schedule::Update::every_backward;
  const double updates = alone ? job_.batch.microbatches : 1;
  step_buffers_->upload(step, *job_.batches, job_.grid.replica(), updates / double(valid),
                        compute_);
  executor_->run_step(step);
}

}  // namespace pipetrain
