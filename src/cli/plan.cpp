#include "cli/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/search.h"
#include "pipetrain/schedule/validate.h"
#include "pipetrain/train/planner.h"

namespace pipetrain {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

double limit_of(const std::vector<double>& limits, size_t rank) {
  return limits.size() == 1 ? limits.front() : limits[rank];
}

// What keeps a schedule out: a limit that a rank exceeds, and by what; or, with an empty limit,
// what it refuses. Both empty: it fits.
struct Reason {
  std::string limit;
  std::string detail;
  std::string budget;  // of that rank, where it is memory

  bool none() const { return detail.empty(); }
};

// Bytes that a rank may take.
double memory_limit(const PlanOptions& options) {
  return options.model.memory_limit ? *options.model.memory_limit * gib
                                    : double(device_model(options.model.device).memory_bytes);
}

// The first rank above --activation-limit or its memory.
Reason does_not_fit(const Plan& plan, const PlanOptions& options) {
  constexpr double rounding = 1e-9;
  for (size_t rank = 0; rank < plan.simulation.ranks.size(); ++rank) {
    const double peak = plan.simulation.ranks[rank].peak_activations;
    if (!options.activation_limit.empty() &&
        peak > limit_of(options.activation_limit, rank) + rounding) {
      return {fmt::format("--activation-limit {:g}", fmt::join(options.activation_limit, ",")),
              fmt::format("rank {} holds {:g} activations", rank, peak), ""};
    }
  }
  if (plan.budgets.empty()) {
    return {};
  }
  const double limit = memory_limit(options);
  for (size_t rank = 0; rank < plan.budgets.size(); ++rank) {
    if (double(plan.budgets[rank].total()) > limit) {
      return {fmt::format("the {} of {}", readable_bytes(size_t(limit)),
                          options.model.memory_limit ? "--memory-limit"
                                                     : "--device " + options.model.device),
              fmt::format("rank {} needs {}", rank, readable_bytes(plan.budgets[rank].total())),
              ": " + to_string(plan.budgets[rank])};
    }
  }
  return {};
}

void count_transfers(const schedule::LoweredSchedule& lowered, Plan* plan) {
  const int last = lowered.placement.ranks() - 1;
  for (const auto& list : lowered.ranks) {
    for (const schedule::LoweredAction& entry : list) {
      if (is_send(entry.action.kind)) {
        const schedule::Channel& channel = lowered.channels[size_t(entry.message.channel)];
        ++plan->transfers;
        const auto [low, high] = std::minmax(channel.source, channel.destination);
        plan->wrap_around += last > 1 && low == 0 && high == last;
      }
    }
  }
}

// Of the model flags; --latency and --bandwidth come before the link's figures.
Profile predicted_profile(const PlanOptions& options, const BudgetRequest& request, int ranks,
                          const LinkModel& link) {
  Profile profile = predict_profile(request, ranks, device_model(options.model.device), link);
  if (options.has("--latency")) {
    profile.link.latency = options.costs.latency;
  }
  if (options.bandwidth > 0) {
    const size_t bytes = message_bytes(request.model, request.shape, request.precision);
    profile.link.transfer = double(bytes) / options.bandwidth;
  }
  return profile;
}

void predict(const PlanOptions& options, const schedule::LoweredSchedule& lowered,
             const LinkModel& link, Plan* plan) {
  BudgetRequest request = options.model.request();
  request.update = lowered.update;
  request.model = trained_model(request.model, lowered.update);
  request.stages =
      partition(request.model.layers, lowered.placement.stages(), options.model.layers_per_stage);
  for (int rank = 0; rank < lowered.placement.ranks(); ++rank) {
    plan->budgets.push_back(rank_budget(request, lowered, rank));
  }
  plan->message_bytes = double(message_bytes(request.model, request.shape, request.precision));
  schedule::Costs costs =
      profiled_costs(predicted_profile(options, request, lowered.placement.ranks(), link), request,
                     lowered.placement);
  costs.weight_memory =
      options.has("--weight-memory") ? options.costs.weight_memory : costs.weight_memory;
  plan->weight_memory = costs.weight_memory;
  plan->hop_ms = costs.latency + costs.transfer;
  plan->simulation = simulate(lowered, costs);
}

Plan make_plan(schedule::Schedule schedule, const PlanOptions& options, const LinkModel& link) {
  for (const std::string& warning : validate(schedule)) {
    fmt::print(stderr, "pipetrain: warning: {}\n", warning);
  }
  const schedule::LoweredSchedule lowered = lower(schedule);
  Plan plan{.schedule = std::move(schedule),
            .simulation = {},
            .budgets = {},
            .weight_memory = options.costs.weight_memory};
  count_transfers(lowered, &plan);
  if (options.model.given()) {
    predict(options, lowered, link, &plan);
    return plan;
  }
  schedule::Costs costs = options.costs;
  const double hop = options.bytes > 0 ? options.bytes / options.bandwidth : 0;
  (options.lowered ? costs.transfer : costs.latency) += hop;
  plan.simulation = options.lowered ? simulate(lowered, costs) : simulate(plan.schedule, costs);
  return plan;
}

schedule::Objective objective_of(const PlanOptions& options) {
  return options.objective == "span" ? schedule::Objective::span : schedule::Objective::makespan;
}

// As train plans, with predicted times for measured ones.
schedule::Schedule planned(const PlanOptions& options, const LinkModel& link) {
  PlanRequest request{
      .budget = options.model.request(),
      .ranks = options.ranks,
      .microbatches = options.microbatches,
      .chunks = options.chunks > 0 ? std::optional(options.chunks) : std::nullopt,
      .layers_per_stage = options.model.layers_per_stage,
      .profile = {},
      .memory = std::vector<size_t>(size_t(options.ranks), size_t(memory_limit(options))),
      .activation_limit = options.activation_limit,
      .objective = objective_of(options)};
  if (options.has("--weight-memory")) {
    request.weight_memory = options.costs.weight_memory;
  }
  request.profile = predicted_profile(options, request.budget, options.ranks, link);
  return plan_auto(request).schedule;
}

// For the times given.
schedule::Schedule searched(const PlanOptions& options) {
  schedule::SearchRequest request{.ranks = options.ranks,
                                  .microbatches = options.microbatches,
                                  .costs = options.costs,
                                  .activation_limit = options.activation_limit,
                                  .objective = objective_of(options),
                                  .max_chunks = std::max(options.chunks, 1),
                                  .allow_v = options.chunks != 1,
                                  .lowered = options.lowered};
  if (options.bytes > 0) {
    request.costs.transfer += options.bytes / options.bandwidth;
  }
  return schedule::search(request).schedule;
}

double peak_memory(const Plan& plan) {
  double peak = 0;
  for (const schedule::RankResult& rank : plan.simulation.ranks) {
    peak = std::max(peak, rank.peak_activations);
  }
  for (const Budget& budget : plan.budgets) {
    peak = std::max(peak, double(budget.total()));
  }
  return peak;
}

}  // namespace

schedule::Schedule requested_schedule(const std::string& name, const PlanOptions& options) {
  if (name.starts_with("csv:")) {
    return schedule::read_csv(name.substr(4));
  }
  if (name == "auto") {
    return options.model.given() ? planned(options, link_model(options.model.link))
                                 : searched(options);
  }
  schedule::Request request{.name = name,
                            .ranks = options.ranks,
                            .microbatches = options.microbatches,
                            .chunks = options.chunks,
                            .group = options.group};
  if (!options.model.given()) {  // for a model: the list that train runs, made at equal times
    request.costs = options.costs;
  }
  return schedule::generate(request);
}

std::vector<Plan> make_plans(const PlanOptions& options) {
  const LinkModel link = link_model(options.model.link);
  std::vector<Plan> plans;
  if (options.schedule != "all") {
    plans.push_back(make_plan(requested_schedule(options.schedule, options), options, link));
    if (const Reason reason = does_not_fit(plans.front(), options); !reason.none()) {
      throw DoesNotFit(fmt::format("--schedule {}: {}, above {}{}", options.schedule, reason.detail,
                                   reason.limit, reason.budget));
    }
    return plans;
  }
  std::vector<std::string> names = schedule::schedule_names();
  names.push_back("auto");
  std::vector<std::string> reasons;  // one line each
  std::map<std::string, std::string> above;
  bool usage = true;  // all are refused for wrong usage
  for (const std::string& name : names) {
    Reason reason;
    try {
      Plan plan = make_plan(requested_schedule(name, options), options, link);
      reason = does_not_fit(plan, options);
      if (reason.none()) {
        plans.push_back(std::move(plan));
      }
    } catch (const Error& error) {
      if (error.code() != ExitCode::usage && error.code() != ExitCode::does_not_fit) {
        throw;
      }
      usage &= error.code() == ExitCode::usage;
      reason.detail = error.what();
    }
    if (reason.none()) {
      continue;
    }
    usage &= reason.limit.empty();
    if (reason.limit.empty()) {
      reasons.push_back(fmt::format("{}: {}", name, reason.detail));
    } else {
      std::string& line = above[reason.limit];
      line += fmt::format("{}{} ({})", line.empty() ? "" : ", ", name, reason.detail);
    }
  }
  for (const auto& [limit, line] : above) {
    reasons.push_back(fmt::format("above {}: {}", limit, line));
  }
  if (plans.empty()) {
    const std::string all =
        fmt::format("--schedule all: no schedule is left; {}", fmt::join(reasons, "; "));
    if (usage) {
      throw UsageError(all);
    }
    throw DoesNotFit(all);
  }
  for (const std::string& reason : reasons) {
    fmt::print(stderr, "pipetrain: left out: {}\n", reason);
  }
  return plans;
}

const Plan* best_plan(const std::vector<Plan>& plans) {
  constexpr double near = 1.01;
  const Plan* shortest = nullptr;
  for (const Plan& plan : plans) {
    if (plan.schedule.update == schedule::Update::step &&
        (shortest == nullptr || plan.simulation.makespan < shortest->simulation.makespan)) {
      shortest = &plan;
    }
  }
  const Plan* best = shortest;
  for (const Plan& plan : plans) {
    if (shortest != nullptr && plan.schedule.update == schedule::Update::step &&
        plan.simulation.makespan <= near * shortest->simulation.makespan &&
        peak_memory(plan) < peak_memory(*best)) {
      best = &plan;
    }
  }
  return best;
}

std::string chunks_table(const PlanOptions& options) {
  constexpr int most_chunks = 8;
  const int layers = options.model.request().model.layers;
  if (layers < options.ranks) {
    return fmt::format("interleaved is not compared: {} layers on {} ranks leave stages empty\n",
                       layers, options.ranks);
  }
  std::string text = "ms per step of interleaved with v chunks per rank; * is the shortest:\n";
  text += fmt::format("{:<10}", "link");
  std::vector<int> chunks;
  for (int v = 1; v <= most_chunks && v * options.ranks <= layers; ++v) {
    chunks.push_back(v);
    text += fmt::format("{:>11}", fmt::format("v={}", v));
  }
  text += "\n";
  for (const std::string& name : link_names()) {
    std::vector<double> steps;
    for (const int v : chunks) {
      schedule::Schedule schedule = schedule::generate({.name = "interleaved",
                                                        .ranks = options.ranks,
                                                        .microbatches = options.microbatches,
                                                        .chunks = v});
      PlanOptions one = options;
      one.model.layers_per_stage.clear();
      steps.push_back(make_plan(std::move(schedule), one, link_model(name)).simulation.makespan);
    }
    text += fmt::format("{:<10}", name);
    const double least = *std::min_element(steps.begin(), steps.end());
    for (const double step : steps) {
      text += fmt::format("{:>11}", fmt::format("{:.2f}{}", step, step == least ? "*" : " "));
    }
    text += "\n";
  }
  return text;
}

}  // namespace pipetrain
