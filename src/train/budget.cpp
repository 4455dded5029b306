#include "pipetrain/train/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/model/parameters.h"
#include "pipetrain/runtime/exchange.h"
#include "pipetrain/runtime/pool.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/train/evaluator.h"
#include "pipetrain/train/step_data.h"

namespace pipetrain {
namespace {

// What NCCL takes, by direction, of a communicator of at most 8 thread blocks, about 10 and 2 MiB
// for each (read in NCCL 2.28).
constexpr size_t nccl_incoming_bytes = size_t(80) << 20;
constexpr size_t nccl_outgoing_bytes = size_t(16) << 20;
constexpr size_t nccl_group_bytes = nccl_incoming_bytes + nccl_outgoing_bytes;

size_t nccl_of_channels(const schedule::LoweredSchedule& schedule, int rank) {
  size_t bytes = 0;
  for (const schedule::Channel& channel : schedule.channels) {
    if (channel.source != channel.destination) {
      bytes += channel.source == rank ? nccl_outgoing_bytes : 0;
      bytes += channel.destination == rank ? nccl_incoming_bytes : 0;
    }
  }
  return bytes;
}

// Of the groups of the whole job, of the copies of a stage and of the tied embedding.
size_t nccl_of_groups(const BudgetRequest& request, const Optimizer::Shape& shape, int rank) {
  const std::vector<int> ends = Optimizer::tied_ranks(shape);
  const bool tied = ends.size() == 2 && (ends[0] == rank || ends[1] == rank);
  const int groups = (int(shape.stages.size()) * request.replicas > 1 ? 1 : 0) +
                     (shape.copies() > 1 ? 1 : 0) + (tied ? 1 : 0);
  return size_t(groups) * nccl_group_bytes;
}

template <typename SlotBytes>
size_t largest_slot(const BudgetRequest& request, const schedule::Placement& placement, int rank,
                    SlotBytes slot_bytes) {
  size_t largest = 0;
  for (const StageLayers& stage : held_stages(request, placement, rank)) {
    largest = std::max(
        largest, slot_bytes(request.model, request.shape, request.precision, stage, request.slots));
  }
  return largest;
}

}  // namespace

size_t Budget::allocated() const {
  return weights + gradients + optimizer + activation_slots + gradient_slots + channel_slots +
         workspace + step_data;
}

GptConfig trained_model(const GptConfig& model, schedule::Update update) {
  GptConfig trained = model;
  trained.tied_head = model.tied_head && update != schedule::Update::every_backward;
  return trained;
}

std::vector<StageLayers> held_stages(const BudgetRequest& request,
                                     const schedule::Placement& placement, int rank) {
  std::vector<StageLayers> held;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    if (placement.holds(rank, stage)) {
      held.push_back(request.stages.at(size_t(stage)));
    }
  }
  return held;
}

size_t activation_slot_bytes(const BudgetRequest& request, const schedule::Placement& placement,
                             int rank) {
  return largest_slot(request, placement, rank,
                      [](const auto&... arguments) { return activation_slot_bytes(arguments...); });
}

size_t gradient_slot_bytes(const BudgetRequest& request, const schedule::Placement& placement,
                           int rank) {
  return largest_slot(request, placement, rank,
                      [](const auto&... arguments) { return gradient_slot_bytes(arguments...); });
}

std::vector<bool> keeps_gradients(const BudgetRequest& request) {
  std::vector<bool> keeps;
  for (const StageLayers& stage : request.stages) {
    keeps.push_back(gradient_slot_bytes(request.model, request.shape, request.precision, stage,
                                        request.slots) > 0);
  }
  return keeps;
}

double weight_memory(const BudgetRequest& request, const schedule::Placement& placement) {
  double most = 0;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const auto activations = double(activation_slot_bytes(request, placement, rank));
    const auto gradients = double(gradient_slot_bytes(request, placement, rank));
    most = std::max(most, (activations + gradients) / activations);
  }
  return most;
}

Optimizer::Shape optimizer_shape(const BudgetRequest& request, const schedule::Placement& placement,
                                 int rank, int replica) {
  Optimizer::Shape shape = {.config = request.model,
                            .precision = request.precision,
                            .stages = {},
                            .pipeline_rank = rank,
                            .microbatches = placement.microbatches(),
                            .replicas = request.replicas,
                            .replica = replica,
                            .mirrored = placement.kind() == schedule::Placement::Kind::mirrored,
                            .split_state = request.split_state,
                            .every_backward = request.update == schedule::Update::every_backward};
  for (int r = 0; r < placement.ranks(); ++r) {
    shape.stages.push_back(held_stages(request, placement, r));
  }
  for (int i = 0; i < placement.microbatches(); ++i) {
    shape.loss_ranks.push_back(placement.owner(placement.stages() - 1, i));
  }
  return shape;
}

Budget rank_budget(const BudgetRequest& request, const schedule::LoweredSchedule& schedule,
                   int rank, const Evaluation* evaluation) {
  const schedule::Placement& placement = schedule.placement;
  const std::vector<StageLayers> held = held_stages(request, placement, rank);
  const Optimizer::Shape shape = optimizer_shape(request, placement, rank);
  const ParameterStore::Bytes parameters =
      ParameterStore::bytes(request.model, held, request.precision, shape.sharding(),
                            schedule.weight_versions.at(size_t(rank)));
  const size_t message = message_bytes(request.model, request.shape, request.precision);
  Budget budget;
  budget.weights = parameters.weights;
  budget.gradients = parameters.gradients;
  budget.optimizer = parameters.optimizer;
  budget.activation_slots = Pool::bytes(schedule.activation_slots.at(size_t(rank)),
                                        activation_slot_bytes(request, placement, rank));
  budget.gradient_slots =
      Pool::bytes(schedule::gradient_slots(schedule, rank, keeps_gradients(request)),
                  gradient_slot_bytes(request, placement, rank));
  const schedule::LoweredSchedule& exchanged =
      evaluation != nullptr ? evaluation->lowered : schedule;
  budget.channel_slots = Exchange::bytes(exchanged, rank, message);
  budget.workspace =
      workspace_bytes(request.model, request.shape, request.precision, held, request.slots);
  if (schedule.has_pairs(rank)) {
    budget.workspace += workspace_bytes(request.model, request.shape, request.precision, held,
                                        request.slots, WorkspaceUse::forward);
  }
  budget.step_data = Optimizer::bytes(shape) + StepBuffers::bytes(request, placement, rank);
  if (evaluation != nullptr) {
    budget.step_data += Evaluator::bytes(request, *evaluation, rank);
  }
  if (request.nccl) {
    budget.nccl = nccl_of_channels(exchanged, rank) + nccl_of_groups(request, shape, rank);
  }
  return budget;
}

Budget evaluation_budget(const BudgetRequest& request, const Evaluation& evaluation, int rank) {
  const schedule::LoweredSchedule& schedule = evaluation.lowered;
  const std::vector<StageLayers> held = held_stages(request, schedule.placement, rank);
  Budget budget;
  budget.weights = ParameterStore::forward_bytes(request.model, held, request.precision);
  budget.activation_slots = Pool::bytes(schedule.activation_slots.at(size_t(rank)),
                                        activation_slot_bytes(request, schedule.placement, rank));
  budget.channel_slots = Exchange::bytes(
      schedule, rank, message_bytes(request.model, request.shape, request.precision));
  budget.workspace = workspace_bytes(request.model, request.shape, request.precision, held,
                                     request.slots, WorkspaceUse::forward);
  budget.step_data = Evaluator::bytes(request, evaluation, rank);
  budget.nccl = request.nccl ? nccl_of_channels(schedule, rank) : 0;
  return budget;
}

std::string readable_bytes(size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::string to_string(const Budget& budget) {
  return fmt::format(
      "weights {}, gradients {}, optimizer {}, activation slots {}, gradient slots {}, channel "
      "slots {}, workspace {}, step data {}, NCCL (estimate) {}; total {}",
      readable_bytes(budget.weights), readable_bytes(budget.gradients),
      readable_bytes(budget.optimizer), readable_bytes(budget.activation_slots),
      readable_bytes(budget.gradient_slots), readable_bytes(budget.channel_slots),
      readable_bytes(budget.workspace), readable_bytes(budget.step_data),
      readable_bytes(budget.nccl), readable_bytes(budget.total()));
}

}  // namespace pipetrain
