#include "pipetrain/train/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"

// Plans from profiles that were made up.

namespace pipetrain {
namespace {

using schedule::Kind;
using schedule::LoweredSchedule;
using schedule::Placement;

constexpr size_t unlimited = size_t(1) << 50;

// 12 layers; a block takes 3 ms, the head as long as two blocks.
PlanRequest asked(int ranks, int microbatches, size_t memory = unlimited) {
  PlanRequest request;
  request.budget = {
      .model = {.layers = 12, .hidden = 64, .heads = 4, .vocabulary = 256, .sequence = 64},
      .shape = {2, 64},
      .precision = Precision::bf16,
      .stages = {},
      .slots = {}};
  request.ranks = ranks;
  request.microbatches = microbatches;
  const DeviceProfile device = {
      .block = {.forward = 1, .backward = 2.1, .backward_input = 1.2, .backward_weight = 0.8},
      .embedding = {.forward = 0.1, .backward = 0.2, .backward_input = 0.2, .backward_weight = 0},
      .head = {.forward = 6, .backward = 0, .backward_input = 0, .backward_weight = 0}};
  request.profile.ranks.assign(size_t(ranks), device);
  request.profile.link = {.latency = 0.01, .transfer = 0.05};
  request.memory.assign(size_t(ranks), memory);
  request.effort = 0.1;
  return request;
}

BudgetRequest budget_of(const PlanRequest& request, const std::vector<StageLayers>& stages) {
  BudgetRequest budget = request.budget;
  budget.stages = stages;
  return budget;
}

size_t largest_budget(const PlanRequest& request, const AutoPlan& plan) {
  const LoweredSchedule lowered = lower(plan.schedule);
  size_t largest = 0;
  for (int rank = 0; rank < request.ranks; ++rank) {
    largest =
        std::max(largest, rank_budget(budget_of(request, plan.stages), lowered, rank).total());
  }
  return largest;
}

size_t count(const AutoPlan& plan, Kind kind) {
  size_t found = 0;
  for (const std::vector<schedule::Action>& actions : plan.schedule.ranks) {
    found += size_t(std::count_if(actions.begin(), actions.end(),
                                  [kind](const auto& action) { return action.kind == kind; }));
  }
  return found;
}

std::vector<int> layers_of(const std::vector<StageLayers>& stages) {
  std::vector<int> layers;
  for (const StageLayers& stage : stages) {
    layers.push_back(stage.layers);
  }
  return layers;
}

// Of a generated schedule with its own partition; infinite where it does not fit.
double makespan_of(const std::string& name, const PlanRequest& request) {
  const LoweredSchedule lowered =
      lower(schedule::generate({name, request.ranks, request.microbatches}));
  try {
    const BudgetRequest budget = budget_of(request, plan_partition(request, lowered));
    for (int rank = 0; rank < request.ranks; ++rank) {
      if (rank_budget(budget, lowered, rank).total() > request.memory[size_t(rank)]) {
        return std::numeric_limits<double>::infinity();
      }
    }
    return simulate(lowered, profiled_costs(request.profile, budget, lowered.placement)).makespan;
  } catch (const DoesNotFit&) {
    return std::numeric_limits<double>::infinity();
  }
}

TEST(Planner, CostsOfARankAreThoseOfItsLayersEmbeddingAndHead) {
  const PlanRequest request = asked(2, 4);
  const BudgetRequest loop = budget_of(request, partition(12, 2, {7, 5}));
  const schedule::Costs costs =
      profiled_costs(request.profile, loop, Placement(Placement::Kind::loop, 2, 1, 4));
  EXPECT_DOUBLE_EQ(costs.forward[0], 7.1);
  EXPECT_DOUBLE_EQ(costs.forward[1], 11);
  EXPECT_DOUBLE_EQ(costs.backward_input[0], 7 * 1.2 + 0.2);
  EXPECT_DOUBLE_EQ(costs.backward_weight[1], 5 * 0.8);
  EXPECT_DOUBLE_EQ(costs.latency, 0.01);
  EXPECT_DOUBLE_EQ(costs.transfer, 0.05);
  EXPECT_GT(costs.weight_memory, 1.3);
  EXPECT_LT(costs.weight_memory, 1.8);
  EXPECT_DOUBLE_EQ(costs.weight_memory,
                   weight_memory(loop, Placement(Placement::Kind::loop, 2, 1, 4)));
  const BudgetRequest v = budget_of(request, partition(12, 4, {3, 4, 4, 1}));
  const schedule::Costs of_v =
      profiled_costs(request.profile, v, Placement(Placement::Kind::v, 2, 2, 4));
  EXPECT_DOUBLE_EQ(of_v.forward[0], 0.1 + 3 + 1 + 6);
  EXPECT_DOUBLE_EQ(of_v.forward[1], 8);
  const schedule::Costs mirrored =
      profiled_costs(request.profile, loop, Placement(Placement::Kind::mirrored, 2, 1, 4));
  EXPECT_DOUBLE_EQ(mirrored.forward[0], (7.1 + 11) / 2);
  EXPECT_DOUBLE_EQ(mirrored.forward[1], (7.1 + 11) / 2);
}

TEST(Planner, AutoIsSoundAndNoScheduleThatFitsIsShorter) {
  for (const bool balance : {false, true}) {
    for (const int ranks : {2, 4}) {
      PlanRequest request = asked(ranks, 2 * ranks);
      request.balance = balance;
      PlanRequest one_microbatch = request;
      one_microbatch.microbatches = 1;
      const size_t least = largest_budget(one_microbatch, plan_auto(one_microbatch));
      size_t largest = 0;
      for (const double part : {1.0, 1.0, 0.5, 0.1}) {  // at first without a limit
        if (largest > 0) {
          request.memory.assign(size_t(ranks), least + size_t(double(largest - least) * part));
        }
        const AutoPlan plan = plan_auto(request);
        largest = largest > 0 ? largest : std::max(least, largest_budget(request, plan));
        EXPECT_TRUE(validate(plan.schedule).empty());
        EXPECT_NO_THROW(validate(lower(plan.schedule)));
        EXPECT_LE(largest_budget(request, plan), request.memory.front());
        const std::vector<int> layers = layers_of(plan.stages);
        EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), 12);
        EXPECT_EQ(schedule::parse_csv(to_csv(plan.schedule), "test").ranks, plan.schedule.ranks);
        for (const std::string name : {"1f1b", "gpipe", "zb-h1", "zb-v"}) {
          EXPECT_LE(plan.simulation.makespan, makespan_of(name, request) * (1 + 1e-9))
              << name << " p=" << ranks << " balance " << balance << " part " << part;
        }
      }
    }
  }
}

TEST(Planner, EveryMemoryIsKeptToUntilNotOneMicrobatchFits) {
  PlanRequest request = asked(4, 8);
  request.effort = 0.01;
  size_t memory = largest_budget(request, plan_auto(request));
  double makespan = 0;
  int plans = 0;
  try {
    for (; plans < 100; ++plans) {
      request.memory.assign(4, memory);
      const AutoPlan plan = plan_auto(request);
      const size_t taken = largest_budget(request, plan);
      ASSERT_LE(taken, memory);
      makespan = plan.simulation.makespan;
      memory = std::min(taken - 1, size_t(0.95 * double(taken)));
    }
    FAIL() << "no memory is too small";
  } catch (const DoesNotFit& error) {
    const std::string message = error.what();
    for (const char* part : {"--memory-limit", "layers per stage", "activation slots", "total"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
  EXPECT_GT(plans, 2);
  request.memory.assign(4, unlimited);
  EXPECT_GT(makespan, makespan_of("zb-h1", request));
}

TEST(Planner, OneRankNeedsNoGradientSlots) {
  const AutoPlan plan = plan_auto(asked(1, 4));
  EXPECT_EQ(count(plan, Kind::backward_input), 0u);
  EXPECT_EQ(count(plan, Kind::backward), 4u * size_t(plan.schedule.placement.chunks()));
  EXPECT_EQ(lower(plan.schedule).gradient_slots, std::vector<int>{0});
}

TEST(Planner, ChunksAndLayersPerStageLimitThePlacement) {
  PlanRequest request = asked(2, 4);
  request.chunks = 1;
  EXPECT_EQ(plan_auto(request).schedule.placement.stages(), 2);
  request.chunks.reset();
  request.layers_per_stage = {5, 7};
  EXPECT_EQ(layers_of(plan_auto(request).stages), (std::vector<int>{5, 7}));
  request.layers_per_stage = {3, 3, 5, 1};
  const AutoPlan plan = plan_auto(request);
  EXPECT_EQ(layers_of(plan.stages), (std::vector<int>{3, 3, 5, 1}));
  EXPECT_EQ(plan.schedule.placement.kind(), Placement::Kind::v);
  request.chunks = 3;
  request.layers_per_stage = {2, 2, 2, 2, 2, 2};
  const AutoPlan three = plan_auto(request);
  EXPECT_EQ(three.schedule.placement.kind(), Placement::Kind::loop);
  EXPECT_EQ(three.schedule.placement.chunks(), 3);
  request.chunks.reset();
  request.layers_per_stage = {4, 4, 4};
  try {
    plan_auto(request);
    FAIL() << "three stages on two ranks";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--layers-per-stage 4,4,4"), std::string::npos);
  }
  EXPECT_EQ(auto_placements(2, 4, 3, {}).size(), 4u);
  EXPECT_THROW(auto_placements(2, 4, 65, {}), UsageError);
}

TEST(Planner, MeasuredBalanceGivesTheRankOfTheHeadFewerLayers) {
  PlanRequest request = asked(4, 8);
  request.balance = true;
  const LoweredSchedule lowered = lower(schedule::generate({"1f1b", 4, 8}));
  EXPECT_EQ(layers_of(plan_partition(request, lowered)), (std::vector<int>{3, 4, 4, 1}));
  request.layers_per_stage = {3, 3, 3, 3};
  EXPECT_EQ(layers_of(plan_partition(request, lowered)), request.layers_per_stage);
  request.layers_per_stage.clear();
  request.balance = false;
  EXPECT_EQ(layers_of(plan_partition(request, lowered)), (std::vector<int>{3, 3, 3, 3}));
}

// Balanced by time alone the middle ranks hold four layers.
TEST(Planner, MeasuredBalanceKeepsToTheMemory) {
  PlanRequest request = asked(4, 8);
  request.balance = true;
  const LoweredSchedule lowered = lower(schedule::generate({"1f1b", 4, 8}));
  const size_t too_little =
      rank_budget(budget_of(request, partition(12, 4, {3, 4, 4, 1})), lowered, 1).total() - 1;
  request.memory[1] = too_little;
  const std::vector<int> layers = layers_of(plan_partition(request, lowered));
  EXPECT_EQ(layers[1], 3);
  EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), 12);
  for (size_t& memory : request.memory) {
    memory = too_little / 4;
  }
  try {
    plan_partition(request, lowered);
    FAIL() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_NE(std::string(error.what()).find("--balance measured"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("total"), std::string::npos);
  }
}

TEST(Planner, AFasterDeviceGetsMoreLayers) {
  PlanRequest request = asked(2, 4);
  request.balance = true;
  for (PassTimes DeviceProfile::*part : {&DeviceProfile::block, &DeviceProfile::head}) {
    PassTimes& times = request.profile.ranks[1].*part;
    times = {times.forward / 4, times.backward / 4, times.backward_input / 4,
             times.backward_weight / 4};
  }
  const AutoPlan plan = plan_auto(request);
  std::vector<int> of_rank(2);
  for (int stage = 0; stage < plan.schedule.placement.stages(); ++stage) {
    of_rank[size_t(plan.schedule.placement.owner(stage, 0))] += plan.stages[size_t(stage)].layers;
  }
  EXPECT_GT(of_rank[1], 2 * of_rank[0]);
}

}  // namespace
}  // namespace pipetrain
