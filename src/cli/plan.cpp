#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"

namespace pipetrain {
namespace {

void check_times(const std::vector<double>& times, const char* flag, int ranks, bool optional) {
  if (times.empty() && optional) {
    return;
  }
  if (times.size() != 1 && times.size() != size_t(ranks)) {
    throw UsageError(fmt::format("{} has {} values; it needs one, or one per rank ({})", flag,
                                 times.size(), ranks));
  }
  for (const double time : times) {
    if (!std::isfinite(time) || time < 0) {
      throw UsageError(fmt::format("{} {}: a time must be finite and not negative", flag, time));
    }
  }
}

void check_number(double value, const char* flag) {
  if (!std::isfinite(value) || value < 0) {
    throw UsageError(fmt::format("{} {}: must be finite and not negative", flag, value));
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    throw UsageError(fmt::format("--schedule csv:{}: cannot be read", path));
  }
  return text.str();
}

double limit_of(const std::vector<double>& limits, size_t rank) {
  return limits.size() == 1 ? limits.front() : limits[rank];
}

// Names the first rank above --activation-limit, or nothing.
std::string over_the_limit(const schedule::Simulation& simulation, const PlanOptions& options) {
  constexpr double rounding = 1e-9;
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const double peak = simulation.ranks[rank].peak_activations;
    if (!options.activation_limit.empty() &&
        peak > limit_of(options.activation_limit, rank) + rounding) {
      return fmt::format(
          "rank {} holds {:g} activations at its peak; --activation-limit allows {:g}", rank, peak,
          limit_of(options.activation_limit, rank));
    }
  }
  return "";
}

Plan make_plan(schedule::Schedule schedule, const PlanOptions& options) {
  for (const std::string& warning : validate(schedule)) {
    fmt::print(stderr, "pipetrain: warning: {}\n", warning);
  }
  const schedule::LoweredSchedule lowered = lower(schedule);
  int transfers = 0;
  for (const auto& rank : lowered.ranks) {
    transfers += int(std::count_if(rank.begin(), rank.end(),
                                   [](const auto& entry) { return is_send(entry.action.kind); }));
  }
  schedule::Simulation simulation =
      options.lowered ? simulate(lowered, options.costs) : simulate(schedule, options.costs);
  return {std::move(schedule), std::move(simulation), transfers};
}

schedule::Schedule requested(const std::string& name, const PlanOptions& options) {
  if (name.starts_with("csv:")) {
    return schedule::parse_csv(read_file(name.substr(4)), name.substr(4));
  }
  return schedule::generate({.name = name,
                             .ranks = options.ranks,
                             .microbatches = options.microbatches,
                             .chunks = options.chunks,
                             .group = options.group});
}

}  // namespace

void PlanOptions::check() {
  if (ranks < 1) {
    throw UsageError(fmt::format("--ranks {}: must be at least 1", ranks));
  }
  if (microbatches < 1) {
    throw UsageError(fmt::format("--microbatches {}: must be at least 1", microbatches));
  }
  if (chunks < 0) {
    throw UsageError(fmt::format("--chunks {}: must be at least 1", chunks));
  }
  check_times(costs.forward, "--forward", ranks, false);
  check_times(costs.backward_input, "--backward-input", ranks, false);
  check_times(costs.backward_weight, "--backward-weight", ranks, false);
  check_times(costs.overlapped, "--overlapped", ranks, true);
  check_times(activation_limit, "--activation-limit", ranks, true);
  check_number(costs.latency, "--latency");
  check_number(costs.weight_memory, "--weight-memory");
  check_number(bytes, "--bytes");
  check_number(bandwidth, "--bandwidth");
  if ((bytes > 0) != (bandwidth > 0)) {
    throw UsageError("--bytes and --bandwidth go together, both above 0");
  }
  costs.transfer = bytes > 0 ? bytes / bandwidth : 0;
  const std::set<std::string> formats = {"table", "json", "csv", "ascii", "svg", "trace"};
  if (!formats.contains(format)) {
    throw UsageError(
        fmt::format("--format {}: must be table, json, csv, ascii, svg or trace", format));
  }
}

std::vector<Plan> make_plans(const PlanOptions& options) {
  std::vector<Plan> plans;
  if (options.schedule != "all") {
    plans.push_back(make_plan(requested(options.schedule, options), options));
    if (const std::string reason = over_the_limit(plans.front().simulation, options);
        !reason.empty()) {
      throw DoesNotFit(reason);
    }
    return plans;
  }
  for (const std::string& name : schedule::schedule_names()) {
    std::string reason;
    try {
      Plan plan = make_plan(requested(name, options), options);
      reason = over_the_limit(plan.simulation, options);
      if (reason.empty()) {
        plans.push_back(std::move(plan));
      }
    } catch (const UsageError& error) {
      reason = error.what();
    }
    if (!reason.empty()) {
      fmt::print(stderr, "pipetrain: {} left out: {}\n", name, reason);
    }
  }
  if (plans.empty()) {
    throw DoesNotFit("no schedule fits these numbers");
  }
  return plans;
}

std::string to_table(const std::vector<Plan>& plans, const PlanOptions&) {
  std::string text =
      fmt::format("{:<14}{:>5}{:>8}{:>8}{:>12}{:>12}{:>9}{:>11}{:>11}\n", "schedule", "ranks",
                  "chunks", "micro-b", "makespan", "span", "bubble", "peak act.", "transfers");
  for (const Plan& plan : plans) {
    double peak = 0;
    for (const schedule::RankResult& rank : plan.simulation.ranks) {
      peak = std::max(peak, rank.peak_activations);
    }
    const schedule::Placement& placement = plan.schedule.placement;
    text += fmt::format("{:<14}{:>5}{:>8}{:>8}{:>12.6g}{:>12.6g}{:>8.1f}%{:>11.4g}{:>11}\n",
                        plan.schedule.name, placement.ranks(), placement.chunks(),
                        placement.microbatches(), plan.simulation.makespan, plan.simulation.span,
                        100 * plan.simulation.bubble_fraction(), peak, plan.transfers);
  }
  text += "bubble: (makespan - ideal) / makespan; peak act.: micro-batches of one rank's share\n";
  return text;
}

std::string to_json(const std::vector<Plan>& plans, bool array) {
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
        {"per_rank", nlohmann::ordered_json::array()},
    };
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      std::vector<int> stages;
      for (int stage = 0; stage < placement.stages(); ++stage) {
        if (placement.holds(rank, stage)) {
          stages.push_back(stage);
        }
      }
      const schedule::RankResult& result = simulation.ranks[size_t(rank)];
      json["per_rank"].push_back({{"rank", rank},
                                  {"stages", stages},
                                  {"busy", result.busy},
                                  {"idle", result.idle},
                                  {"peak_chunks", result.peak_chunks},
                                  {"peak_activations", result.peak_activations},
                                  {"weight_versions", result.weight_versions}});
    }
    all.push_back(std::move(json));
  }
  return (array ? all : all.front()).dump(2) + "\n";
}

}  // namespace pipetrain
