#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "cli/cost_model.h"
#include "cli/plan.h"
#include "cli/program.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/planner.h"

// What `pipetrain plan` predicts with model flags.

namespace pipetrain {
namespace {

constexpr SlotPolicy policies[] = {
    {Recompute::none, Defer::all},      {Recompute::none, Defer::cheap},
    {Recompute::attention, Defer::all}, {Recompute::attention, Defer::cheap},
    {Recompute::full, Defer::all},      {Recompute::full, Defer::cheap},
};

std::string text(const SlotPolicy& policy) {
  return "recompute " + to_string(policy.recompute) + " defer " + to_string(policy.defer);
}

TEST(ModelPlan, MemoryIsTheBudgetThatTrainAllocates) {
  const TemporaryDirectory directory;
  test::write_text(directory, "text", 2000);
  for (const char* schedule : {"1f1b", "zb-h1", "zb-v", "v-half", "v-min"}) {
    for (const SlotPolicy& policy : policies) {
      SCOPED_TRACE(schedule + (" " + text(policy)));
      PlanOptions options;
      options.schedule = schedule;
      options.ranks = 3;
      options.microbatches = 5;
      options.model.layers = 7;
      options.model.hidden = 16;
      options.model.heads = 2;
      options.model.vocab_size = 300;
      options.model.sequence_length = 8;
      options.model.microbatch_size = 2;
      options.model.slots = policy;
      const Plan plan = make_plans(options).front();

      TrainConfig config;
      config.data = {directory.file("text")};
      config.schedule = schedule;
      config.microbatches = 5;
      config.layers = 7;
      config.hidden = 16;
      config.heads = 2;
      config.vocab_size = 300;
      config.sequence_length = 8;
      config.microbatch_size = 2;
      config.precision = Precision::bf16;
      config.slots = policy;
      for (int rank = 0; rank < 3; ++rank) {
        Budget planned = plan.budgets[size_t(rank)];
        EXPECT_GT(planned.nccl, 0u);  // plan is for GPUs, in either flavour
        const Budget budget = make_job(config, 3, rank).budget;
        planned.nccl = budget.nccl;
        EXPECT_EQ(to_string(planned), to_string(budget));
        EXPECT_EQ(planned.total(), budget.total());
      }
    }
  }
}

Plan plan_of_gpt2(const std::string& schedule, std::optional<double> memory_limit) {
  PlanOptions options;
  options.schedule = schedule;
  options.ranks = 4;
  options.microbatches = 8;
  options.model.model = "gpt2-1558m";
  options.model.microbatch_size = 4;
  options.model.memory_limit = memory_limit;
  options.model.link = "pcie4";
  return make_plans(options).front();
}

size_t most_memory(const Plan& plan) {
  size_t most = 0;
  for (const Budget& budget : plan.budgets) {
    most = std::max(most, budget.total());
  }
  return most;
}

TEST(ModelPlan, AutoIsNoSlowerThanAScheduleOfTheLiteratureThatFits) {
  const double free = plan_of_gpt2("auto", std::nullopt).simulation.makespan;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"}) {
    const Plan plan = plan_of_gpt2(schedule, std::nullopt);
    EXPECT_LE(free, plan.simulation.makespan * (1 + 1e-9)) << schedule;
  }
  for (const char* schedule : {"zb-v", "v-min"}) {
    const double limit = double(most_memory(plan_of_gpt2(schedule, std::nullopt))) / (1 << 30);
    const Plan fixed = plan_of_gpt2(schedule, limit);
    const Plan found = plan_of_gpt2("auto", limit);
    EXPECT_LE(found.simulation.makespan, fixed.simulation.makespan * (1 + 1e-9)) << schedule;
    EXPECT_LE(double(most_memory(found)), limit * (1 << 30)) << schedule;
  }
}

TEST(ModelPlan, WhatIsComputedAgainMakesTheInputGradientLonger) {
  const schedule::Placement placement(schedule::Placement::Kind::loop, 4, 1, 8);
  const auto costs = [&](const SlotPolicy& policy) {
    BudgetRequest request{.model = named_model("gpt2-774m"),
                          .shape = {2, 1024},
                          .precision = Precision::bf16,
                          .stages = partition(36, 4),
                          .slots = policy};
    const Profile profile = predict_profile(request, 4, device_model("h100"), link_model("nvlink"));
    return profiled_costs(profile, request, placement);
  };
  const schedule::Costs kept = costs({});
  const double c = 1280;
  const double forward = kept.forward[0] / (24 * c * c + 2 * c * 1024);  // ms per operation
  for (const SlotPolicy& policy : policies) {
    SCOPED_TRACE(text(policy));
    const schedule::Costs now = costs(policy);
    const double again = policy.recompute == Recompute::none ? 0
                         : policy.recompute == Recompute::attention
                             ? 6 * c * c + 2 * c * 1024    // qkv, attention
                             : 16 * c * c + 2 * c * 1024;  // all but the last projection
    const double moved = policy.defer == Defer::all ? 0 : 10 * c * c;  // from W to I
    EXPECT_EQ(now.forward, kept.forward);
    EXPECT_NEAR(now.backward_input[0], kept.backward_input[0] + (again + moved) * forward, 1e-9);
    EXPECT_NEAR(now.backward_weight[0], kept.backward_weight[0] - moved * forward, 1e-9);
  }
}

TEST(ModelPlan, APendingWeightGradientCountsAsTheSlotsHoldIt) {
  const auto plan = [](const SlotPolicy& policy) {
    PlanOptions options;
    options.schedule = "zb-h1";
    options.ranks = 4;
    options.microbatches = 8;
    options.model.model = "gpt2-124m";
    options.model.slots = policy;
    return options;
  };
  const Plan all = make_plans(plan({})).front();
  EXPECT_NEAR(all.weight_memory, 1 + 12. / 20, 0.01);
  EXPECT_GT(all.simulation.ranks[3].peak_activations, 5);
  const Plan cheap = make_plans(plan({Recompute::none, Defer::cheap})).front();
  EXPECT_EQ(cheap.weight_memory, 1);
  EXPECT_EQ(cheap.simulation.ranks[3].peak_activations, 4);
  PlanOptions given = plan({});
  given.given = {"--weight-memory"};
  given.costs.weight_memory = 0.25;
  EXPECT_EQ(make_plans(given).front().weight_memory, 0.25);
}

}  // namespace
}  // namespace pipetrain
