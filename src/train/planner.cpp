#include "pipetrain/train/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "pipetrain/error.h"
#include "pipetrain/runtime/pool.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/search.h"
#include "pipetrain/train/balance.h"

namespace pipetrain {
namespace {

using schedule::Action;
using schedule::Kind;
using schedule::LoweredSchedule;
using schedule::Placement;
using schedule::Schedule;

std::vector<int> layers_of(const std::vector<StageLayers>& stages) {
  std::vector<int> layers;
  for (const StageLayers& stage : stages) {
    layers.push_back(stage.layers);
  }
  return layers;
}

// The first rank whose budget exceeds its memory; -1: all fit.
int first_overfull(const PlanRequest& request, const std::vector<StageLayers>& stages,
                   const LoweredSchedule& lowered) {
  BudgetRequest budget = request.budget;
  budget.stages = stages;
  for (int rank = 0; rank < request.ranks; ++rank) {
    if (rank_budget(budget, lowered, rank).total() > request.memory.at(size_t(rank))) {
      return rank;
    }
  }
  return -1;
}

DoesNotFit does_not_fit(const PlanRequest& request, const std::vector<StageLayers>& stages,
                        const LoweredSchedule& lowered, int rank, const std::string& what) {
  BudgetRequest budget = request.budget;
  budget.stages = stages;
  return DoesNotFit(fmt::format(
      "pipeline rank {} has {} (--memory-limit, or what the device has free), too little for {} "
      "with {} layers per stage: {}",
      rank, readable_bytes(request.memory.at(size_t(rank))), what,
      fmt::join(layers_of(stages), ","), to_string(rank_budget(budget, lowered, rank))));
}

// The schedule that needs least memory: one micro-batch at a time.
Schedule one_at_a_time(const Placement& placement) {
  Schedule schedule{"auto", placement, {}, schedule::Update::step, false, {}};
  schedule.ranks.resize(size_t(placement.ranks()));
  for (int microbatch = 0; microbatch < placement.microbatches(); ++microbatch) {
    const auto add = [&](Kind kind, int stage) {
      const int rank = placement.owner(stage, microbatch);
      schedule.ranks[size_t(rank)].push_back({kind, stage, microbatch});
    };
    for (int stage = 0; stage < placement.stages(); ++stage) {
      add(Kind::forward, stage);
    }
    for (int stage = placement.stages() - 1; stage >= 0; --stage) {
      add(Kind::backward, stage);
    }
  }
  return schedule;
}

// I directly followed by its W, as one whole backward.
std::vector<Action> with_whole_backwards(const std::vector<Action>& actions) {
  std::vector<Action> result;
  for (const Action& action : actions) {
    if (action.kind == Kind::backward_weight && !result.empty() &&
        result.back() == Action{Kind::backward_input, action.stage, action.microbatch}) {
      result.back().kind = Kind::backward;
    } else {
      result.push_back(action);
    }
  }
  return result;
}

// What is minimised.
double value_of(const PlanRequest& request, const schedule::Simulation& simulation) {
  return request.objective == schedule::Objective::span ? simulation.span : simulation.makespan;
}
double value_of(const PlanRequest& request, const AutoPlan& plan) {
  return value_of(request, plan.simulation);
}

// One placement with one partition.
class Option {
 public:
  Option(const PlanRequest& request, const Placement& placement, std::vector<StageLayers> stages)
      : request_(request),
        placement_(placement),
        least_(lower(one_at_a_time(placement))),
        budget_(request.budget) {
    budget_.stages = std::move(stages);
    if (const int rank = first_overfull(request, budget_.stages, least_); rank >= 0) {
      throw does_not_fit(request, budget_.stages, least_, rank, "one micro-batch at a time");
    }
    costs_ = profiled_costs(request.profile, budget_, placement);
    costs_.weight_memory = request.weight_memory.value_or(costs_.weight_memory);
  }

  AutoPlan plan() const {
    constexpr int most_searches = 3;
    std::vector<double> limits = activation_limits();
    AutoPlan found = search(limits, costs_.weight_memory);
    if (!lower_limits(found, &limits)) {
      return found;
    }
    AutoPlan best = finish(one_at_a_time(placement_), activation_limits(), "one at a time");
    const auto keep_better = [&](AutoPlan other) {
      std::vector<double> unused = other.activation_limit;
      if (!lower_limits(other, &unused) && value_of(request_, other) < value_of(request_, best)) {
        best = std::move(other);
      }
    };
    for (Schedule& fixed : schedule::fixed_schedules(placement_)) {
      const std::string name = fixed.name;
      fixed.name = "auto";
      keep_better(finish(std::move(fixed), activation_limits(), name));
    }
    constexpr double never = 1e9;  // slots between I and W: no backward is split
    keep_better(search(activation_limits(), never));
    // What a search exceeds the memory by says only roughly how much less it should be given: where
    // that was more than needed, half of it.
    std::vector<double> too_much = activation_limits();
    for (int i = 1; i < most_searches; ++i) {
      const std::vector<double> tried = limits;
      found = search(tried, costs_.weight_memory);
      if (lower_limits(found, &limits)) {
        too_much = tried;
        continue;
      }
      for (size_t rank = 0; rank < limits.size(); ++rank) {
        limits[rank] = (tried[rank] + too_much[rank]) / 2;
      }
      keep_better(std::move(found));
    }
    return best;
  }

 private:
  double share_bytes(int rank) const {
    return double(
        Pool::bytes(placement_.chunks(), activation_slot_bytes(budget_, placement_, rank)));
  }

  // The memory that is left beside everything else, in rank shares; no more than all micro-batches
  // can take.
  std::vector<double> activation_limits() const {
    std::vector<double> limits;
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      const Budget budget = rank_budget(budget_, least_, rank);
      const double left = double(request_.memory.at(size_t(rank)) - budget.total()) +
                          double(budget.activation_slots);
      const double all = placement_.microbatches() * std::max(costs_.weight_memory, 1.0);
      double limit = left / share_bytes(rank);
      if (const std::vector<double>& asked = request_.activation_limit; !asked.empty()) {
        limit = std::min(limit, asked[asked.size() == 1 ? 0 : size_t(rank)]);
      }
      limits.push_back(std::clamp(limit, 1.0, all));
    }
    return limits;
  }

  // Of the ranks that exceed their memory. False: there is none.
  bool lower_limits(const AutoPlan& plan, std::vector<double>* limits) const {
    const LoweredSchedule lowered = lower(plan.schedule);
    bool any = false;
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      const size_t total = rank_budget(budget_, lowered, rank).total();
      const size_t memory = request_.memory.at(size_t(rank));
      if (total > memory) {
        double& limit = (*limits)[size_t(rank)];
        limit = std::max(1.0, limit - double(total - memory) / share_bytes(rank));
        any = true;
      }
    }
    return any;
  }

  AutoPlan search(const std::vector<double>& limits, double weight_memory) const {
    const bool loop = placement_.kind() == Placement::Kind::loop;
    schedule::SearchRequest request{.ranks = placement_.ranks(),
                                    .microbatches = placement_.microbatches(),
                                    .costs = costs_,
                                    .activation_limit = limits,
                                    .objective = request_.objective,
                                    .min_chunks = loop ? placement_.chunks() : 2,
                                    .max_chunks = loop ? placement_.chunks() : 1,
                                    .allow_v = !loop,
                                    .lowered = true,
                                    .effort = request_.effort};
    request.costs.weight_memory = weight_memory;
    schedule::SearchResult found = schedule::search(request);
    return finish(std::move(found.schedule), limits, found.origin);
  }

  AutoPlan finish(Schedule schedule, const std::vector<double>& limits,
                  const std::string& origin) const {
    constexpr double rounding = 1 + 1e-9;
    schedule::Simulation simulation = simulate(lower(schedule), costs_);
    for (std::vector<Action>& actions : schedule.ranks) {
      std::vector<Action> whole = with_whole_backwards(actions);
      if (whole.size() == actions.size()) {
        continue;
      }
      actions.swap(whole);
      schedule::Simulation with_whole = simulate(lower(schedule), costs_);
      if (value_of(request_, with_whole) <= value_of(request_, simulation) * rounding) {
        simulation = std::move(with_whole);
      } else {
        actions.swap(whole);
      }
    }
    return {std::move(schedule), budget_.stages, costs_, limits, std::move(simulation), origin};
  }

  const PlanRequest& request_;
  Placement placement_;
  LoweredSchedule least_;
  BudgetRequest budget_;
  schedule::Costs costs_;
};

// Layers per stage to search a schedule for: balanced so that one micro-batch at a time fits, and,
// where less room for layers leaves more for micro-batches, so that a common schedule does.
template <typename Attempt>
std::set<std::vector<int>> partitions(const PlanRequest& request, const Placement& placement,
                                      const Attempt& attempt) {
  std::vector<Schedule> schedules = {one_at_a_time(placement)};
  if (placement.chunks() == 1) {
    schedules.push_back(schedule::generate({"1f1b", placement.ranks(), placement.microbatches()}));
  } else if (placement.kind() == Placement::Kind::v) {
    schedules.push_back(schedule::generate({"zb-v", placement.ranks(), placement.microbatches()}));
  }
  std::set<std::vector<int>> result;
  for (const Schedule& fixed : schedules) {
    attempt([&] { result.insert(layers_of(plan_partition(request, lower(fixed)))); });
  }
  return result;
}

}  // namespace

schedule::Costs profiled_costs(const Profile& profile, const BudgetRequest& request,
                               const Placement& placement) {
  schedule::Costs costs{.forward = {}, .backward_input = {}, .backward_weight = {}};
  costs.latency = profile.link.latency;
  costs.transfer = profile.link.transfer;
  costs.weight_memory = weight_memory(request, placement);
  const double share = placement.kind() == Placement::Kind::mirrored ? 0.5 : 1;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const DeviceProfile& device = profile.ranks.at(size_t(rank));
    PassTimes times;
    const auto add = [&](const PassTimes& part, double count) {
      times.forward += count * part.forward;
      times.backward_input += count * part.backward_input;
      times.backward_weight += count * part.backward_weight;
    };
    for (const StageLayers& stage : held_stages(request, placement, rank)) {
      add(device.block, share * stage.layers);
      add(device.embedding, stage.embedding ? share : 0);
      add(device.head, stage.head ? share : 0);
    }
    costs.forward.push_back(times.forward);
    costs.backward_input.push_back(times.backward_input);
    costs.backward_weight.push_back(times.backward_weight);
  }
  return costs;
}

std::vector<Placement> auto_placements(int ranks, int microbatches, std::optional<int> chunks,
                                       const std::vector<int>& layers_per_stage) {
  constexpr int most_chunks = 64;
  if (chunks && *chunks > most_chunks) {
    throw UsageError(fmt::format("--chunks {}: --schedule auto takes 1 to {} chunks per rank",
                                 *chunks, most_chunks));
  }
  std::vector<Placement> placements;
  const auto add = [&](Placement::Kind kind, int count) {
    const Placement placement(kind, ranks, count, microbatches);
    if (layers_per_stage.empty() || layers_per_stage.size() == size_t(placement.stages())) {
      placements.push_back(placement);
    }
  };
  for (int count = 1; count <= chunks.value_or(1); ++count) {
    add(Placement::Kind::loop, count);
  }
  if (chunks != 1) {
    add(Placement::Kind::v, 2);
  }
  if (placements.empty()) {
    throw UsageError(fmt::format(
        "--layers-per-stage {}: {} entries, but --schedule auto with --chunks {} has {} stages per "
        "rank, on {} ranks",
        fmt::join(layers_per_stage, ","), layers_per_stage.size(), chunks.value_or(1),
        chunks == 1 ? "1" : fmt::format("1 to {}", std::max(chunks.value_or(1), 2)), ranks));
  }
  return placements;
}

std::vector<StageLayers> plan_partition(const PlanRequest& request,
                                        const LoweredSchedule& schedule) {
  const Placement& placement = schedule.placement;
  const int layers = request.budget.model.layers;
  if (!request.balance || !request.layers_per_stage.empty()) {
    return partition(layers, placement.stages(), request.layers_per_stage);
  }
  // Of the rank that does not fit, the stage with the most layers.
  const auto too_large = [&](const std::vector<int>& tried) -> std::optional<int> {
    const int rank =
        first_overfull(request, partition(layers, placement.stages(), tried), schedule);
    if (rank < 0) {
      return std::nullopt;
    }
    int largest = -1;
    for (int stage = 0; stage < placement.stages(); ++stage) {
      if (placement.holds(rank, stage) &&
          (largest < 0 || tried[size_t(stage)] > tried[size_t(largest)])) {
        largest = stage;
      }
    }
    return largest;
  };
  std::vector<int> tried;
  const auto balanced =
      balanced_layers_that_fit(layers, stage_times(request.profile, placement), too_large, &tried);
  const std::vector<StageLayers> stages = partition(layers, placement.stages(), tried);
  if (!balanced) {
    throw does_not_fit(request, stages, schedule, first_overfull(request, stages, schedule),
                       "any partition (--balance measured)");
  }
  return stages;
}

AutoPlan plan_auto(const PlanRequest& request) {
  std::optional<AutoPlan> best;
  std::optional<DoesNotFit> problem;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const DoesNotFit& error) {
      problem = problem ? problem : error;
    }
  };
  for (const Placement& placement : auto_placements(request.ranks, request.microbatches,
                                                    request.chunks, request.layers_per_stage)) {
    for (const std::vector<int>& layers : partitions(request, placement, attempt)) {
      attempt([&] {
        AutoPlan plan = Option(request, placement,
                               partition(request.budget.model.layers, placement.stages(), layers))
                            .plan();
        if (!best || value_of(request, plan) < value_of(request, *best)) {
          best = std::move(plan);
        }
      });
    }
  }
  if (!best) {
    throw *problem;
  }
  return std::move(*best);
}

}  // namespace pipetrain
