#include "cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace pipetrain {
namespace {

// What rounding made of a percentage of 0 is 0, not -0.
double without_rounding(double percentage) {
  return std::round(percentage * 1e6) / 1e6 + 0.0;
}

double peak_activations(const Plan& plan) {
  double peak = 0;
  for (const schedule::RankResult& rank : plan.simulation.ranks) {
    peak = std::max(peak, rank.peak_activations);
  }
  return peak;
}

size_t peak_bytes(const Plan& plan) {
  size_t peak = 0;
  for (const Budget& budget : plan.budgets) {
    peak = std::max(peak, budget.total());
  }
  return peak;
}

std::string row(const Plan& plan) {
  const schedule::Placement& placement = plan.schedule.placement;
  std::string text = fmt::format(
      "{:<14}{:>5}{:>7}{:>8}{:>11.5g}{:>11.5g}{:>8.1f}%{:>10.4g}{:>10}", plan.schedule.name,
      placement.ranks(), placement.chunks(), placement.microbatches(), plan.simulation.makespan,
      plan.simulation.span, without_rounding(100 * plan.simulation.bubble_fraction()),
      peak_activations(plan), plan.transfers);
  if (!plan.budgets.empty()) {
    text += fmt::format("{:>12}", readable_bytes(peak_bytes(plan)));
  }
  return text + "\n";
}

// What the model flags predict beside the step.
std::string model_text(const Plan& plan, const PlanOptions& options) {
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  const int one_way = plan.transfers / 2;
  const int without = (plan.transfers - plan.wrap_around) / 2;
  std::string text = fmt::format("hand-off: {} and {:.2f} ms; {} transfers each way, {:.2f} GiB",
                                 readable_bytes(size_t(plan.message_bytes)), plan.hop_ms, one_way,
                                 one_way * plan.message_bytes / gib);
  if (plan.wrap_around > 0) {
    text += fmt::format(" ({}, {:.2f} GiB without the wrap-around hops)", without,
                        without * plan.message_bytes / gib);
  }
  text += fmt::format("\nmodel: {} at {:.0f}% of its peak, link {}; predicted, not measured\n",
                      options.model.device, 100 * assumed_efficiency, options.model.link);
  for (size_t rank = 0; rank < plan.budgets.size(); ++rank) {
    text += fmt::format("memory of rank {}: {}\n", rank, to_string(plan.budgets[rank]));
  }
  return text;
}

std::string choice_text(const std::vector<Plan>& plans) {
  const Plan* best = best_plan(plans);
  if (best == nullptr) {
    return "";
  }
  return fmt::format(
      "choice: {} with {} chunk(s): its step of {:.5g} is the shortest, or within 1% of it with "
      "the "
      "least memory (asynchronous schedules are not compared)\n",
      best->schedule.name, best->schedule.placement.chunks(), best->simulation.makespan);
}

nlohmann::ordered_json rank_json(const Plan& plan, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < plan.schedule.placement.stages(); ++stage) {
    if (plan.schedule.placement.holds(rank, stage)) {
      stages.push_back(stage);
    }
  }
  const schedule::RankResult& result = plan.simulation.ranks[size_t(rank)];
  nlohmann::ordered_json json = {{"rank", rank},
                                 {"stages", stages},
                                 {"busy", result.busy},
                                 {"idle", result.idle},
                                 {"peak_chunks", result.peak_chunks},
                                 {"peak_activations", result.peak_activations},
                                 {"weight_versions", result.weight_versions}};
  if (!plan.budgets.empty()) {
    const Budget& budget = plan.budgets[size_t(rank)];
    json["memory_bytes"] = {{"weights", budget.weights},
                            {"gradients", budget.gradients},
                            {"optimizer", budget.optimizer},
                            {"activation_slots", budget.activation_slots},
                            {"gradient_slots", budget.gradient_slots},
                            {"channel_slots", budget.channel_slots},
                            {"workspace", budget.workspace},
                            {"step_data", budget.step_data},
                            {"nccl", budget.nccl},
                            {"total", budget.total()}};
  }
  return json;
}

}  // namespace

std::string to_table(const std::vector<Plan>& plans, const PlanOptions& options) {
  const bool model = options.model.given();
  std::string text =
      fmt::format("{:<14}{:>5}{:>7}{:>8}{:>11}{:>11}{:>9}{:>10}{:>10}{}\n", "schedule", "ranks",
                  "chunks", "micro-b", model ? "step ms" : "makespan", "span", "bubble",
                  "peak act.", "transfers", model ? fmt::format("{:>12}", "memory") : "");
  for (const Plan& plan : plans) {
    text += row(plan);
  }
  text += "bubble: (makespan - ideal) / makespan; peak act.: micro-batches of one rank's share\n";
  if (options.schedule == "all") {
    text += choice_text(plans);
  }
  if (model) {
    const Plan* shown = plans.size() == 1 ? &plans.front() : best_plan(plans);
    if (shown != nullptr) {
      text += model_text(*shown, options);
    }
    text += chunks_table(options);
  }
  return text;
}

std::string to_json(const std::vector<Plan>& plans, const PlanOptions& options) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Plan& plan : plans) {
    const schedule::Simulation& simulation = plan.simulation;
    const schedule::Placement& placement = plan.schedule.placement;
    nlohmann::ordered_json json = {
        {"schedule", plan.schedule.name},
        {"ranks", placement.ranks()},
        {"chunks", placement.chunks()},
        {"microbatches", placement.microbatches()},
        {"makespan", simulation.makespan},
        {"span", simulation.span},
        {"ideal", simulation.ideal},
        {"bubble_fraction", simulation.bubble_fraction()},
        {"bubble_fraction_span", simulation.bubble_fraction_span()},
        {"bubble_over_ideal", simulation.bubble_over_ideal()},
        {"transfers", plan.transfers},
    };
    if (!plan.budgets.empty()) {
      json["bytes_per_handoff"] = size_t(plan.message_bytes);
      json["handoff_ms"] = plan.hop_ms;
      json["device"] = options.model.device;
      json["link"] = options.model.link;
    }
    json["per_rank"] = nlohmann::ordered_json::array();
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      json["per_rank"].push_back(rank_json(plan, rank));
    }
    all.push_back(std::move(json));
  }
  return (options.schedule == "all" ? all : all.front()).dump(2) + "\n";
}

}  // namespace pipetrain
