#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/search.h"
#include "pipetrain/schedule/validate.h"

namespace pipetrain {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr double largest_number = 1e15;  // sums of millions of times stay finite and exact enough

void check_number(double value, const char* flag) {
  if (!(value >= 0 && value <= largest_number)) {
    throw UsageError(fmt::format("{} {}: must be from 0 to {:g}", flag, value, largest_number));
  }
}

void check_times(const std::vector<double>& times, const char* flag, int ranks, bool optional) {
  if (times.empty() && optional) {
    return;
  }
  if (times.size() != 1 && times.size() != size_t(ranks)) {
    throw UsageError(fmt::format("{} has {} values; it needs one, or one per rank ({})", flag,
                                 times.size(), ranks));
  }
  for (const double time : times) {
    check_number(time, flag);
  }
}

double limit_of(const std::vector<double>& limits, size_t rank) {
  return limits.size() == 1 ? limits.front() : limits[rank];
}

// Names the first rank above --activation-limit or its memory; empty: all fit.
std::string does_not_fit(const Plan& plan, const PlanOptions& options) {
  constexpr double rounding = 1e-9;
  for (size_t rank = 0; rank < plan.simulation.ranks.size(); ++rank) {
    const double peak = plan.simulation.ranks[rank].peak_activations;
    if (!options.activation_limit.empty() &&
        peak > limit_of(options.activation_limit, rank) + rounding) {
      return fmt::format(
          "rank {} holds {:g} activations at its peak; --activation-limit allows {:g}", rank, peak,
          limit_of(options.activation_limit, rank));
    }
  }
  if (plan.budgets.empty()) {
    return "";
  }
  const double limit = options.model.memory_limit
                           ? *options.model.memory_limit * gib
                           : double(device_model(options.model.device).memory_bytes);
  for (size_t rank = 0; rank < plan.budgets.size(); ++rank) {
    if (double(plan.budgets[rank].total()) > limit) {
      return fmt::format("rank {} needs more than {} (--memory-limit, --device): {}", rank,
                         readable_bytes(size_t(limit)), to_string(plan.budgets[rank]));
    }
  }
  return "";
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

// Link and times of the model flags; --latency and --bandwidth come before the link's figures.
void predict(const PlanOptions& options, const schedule::LoweredSchedule& lowered,
             const LinkModel& link, Plan* plan) {
  BudgetRequest request = options.model.request();
  request.stages =
      partition(request.model.layers, lowered.placement.stages(), options.model.layers_per_stage);
  for (int rank = 0; rank < lowered.placement.ranks(); ++rank) {
    plan->budgets.push_back(rank_budget(request, lowered, rank));
  }
  plan->message_bytes = double(message_bytes(request.model, request.shape, request.precision));
  schedule::Costs costs =
      predict_costs(request, lowered.placement, device_model(options.model.device), link);
  costs.weight_memory = options.costs.weight_memory;
  costs.latency = options.latency_given ? options.costs.latency : costs.latency;
  costs.transfer = options.bandwidth > 0 ? plan->message_bytes / options.bandwidth : costs.transfer;
  plan->hop_ms = costs.latency + costs.transfer;
  plan->simulation = simulate(lowered, costs);
}

Plan make_plan(schedule::Schedule schedule, const PlanOptions& options, const LinkModel& link) {
  for (const std::string& warning : validate(schedule)) {
    fmt::print(stderr, "pipetrain: warning: {}\n", warning);
  }
  const schedule::LoweredSchedule lowered = lower(schedule);
  Plan plan{std::move(schedule), {}, 0, 0, {}, 0, 0};
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

// What generators and the search plan with: the model's times when every rank holds one stage.
schedule::Costs costs_of_one_stage_per_rank(const PlanOptions& options) {
  const schedule::Placement placement(schedule::Placement::Kind::loop, options.ranks, 1,
                                      options.microbatches);
  BudgetRequest request = options.model.request();
  request.stages = partition(request.model.layers, options.ranks);
  schedule::Costs costs = predict_costs(request, placement, device_model(options.model.device),
                                        link_model(options.model.link));
  costs.latency += costs.transfer;
  costs.transfer = 0;
  costs.weight_memory = options.costs.weight_memory;
  return costs;
}

schedule::Schedule searched(const PlanOptions& options) {
  schedule::SearchRequest request{.ranks = options.ranks,
                                  .microbatches = options.microbatches,
                                  .costs = options.costs,
                                  .activation_limit = options.activation_limit,
                                  .objective = options.objective == "span"
                                                   ? schedule::Objective::span
                                                   : schedule::Objective::makespan,
                                  .max_chunks = std::max(options.chunks, 1),
                                  .allow_v = options.chunks != 1};
  if (options.model.given()) {
    request.costs = costs_of_one_stage_per_rank(options);
  } else if (options.bytes > 0) {
    request.costs.latency += options.bytes / options.bandwidth;
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

bool PlanModel::given() const {
  return !model.empty() || layers || hidden || heads || vocab_size || sequence_length ||
         microbatch_size || !layers_per_stage.empty() || memory_limit;
}

BudgetRequest PlanModel::request() const {
  GptConfig config;
  if (!model.empty()) {
    config = named_model(model);
  }
  if (model.empty() && !(layers && hidden && heads && sequence_length)) {
    throw UsageError(
        "a model needs --model, or all of --layers, --hidden, --heads and --sequence-length");
  }
  const auto set = [](const std::optional<int>& flag, int* field) {
    *field = flag.value_or(*field);
  };
  set(layers, &config.layers);
  set(hidden, &config.hidden);
  set(heads, &config.heads);
  set(sequence_length, &config.sequence);
  config.vocabulary = vocab_size.value_or(config.vocabulary == 0 ? 50257 : config.vocabulary);
  config.check();
  const int batch = microbatch_size.value_or(1);
  if (batch < 1) {
    throw UsageError(fmt::format("--microbatch-size {}: must be at least 1", batch));
  }
  return {.model = config,
          .shape = {batch, config.sequence},
          .precision = parse_precision(precision),
          .stages = {}};
}

void PlanOptions::check(bool times_given) const {
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
  const auto all_zero = [](const std::vector<double>& times) {
    return std::all_of(times.begin(), times.end(), [](double time) { return time == 0; });
  };
  if (all_zero(costs.forward) && all_zero(costs.backward_input) &&
      all_zero(costs.backward_weight)) {
    throw UsageError("--forward, --backward-input, --backward-weight: not all may be 0");
  }
  check_times(activation_limit, "--activation-limit", ranks, true);
  check_number(costs.latency, "--latency");
  check_number(costs.weight_memory, "--weight-memory");
  check_number(bytes, "--bytes");
  check_number(bandwidth, "--bandwidth");
  if (model.given()) {
    if (times_given) {
      throw UsageError(
          "the model flags predict the times: leave out --forward, --backward-input, "
          "--backward-weight, --overlapped and --bytes, or the model flags");
    }
    model.request();
    device_model(model.device);
    link_model(model.link);
    if (model.memory_limit && !(*model.memory_limit > 0)) {
      throw UsageError(fmt::format("--memory-limit {}: must be above 0", *model.memory_limit));
    }
  } else if ((bytes > 0) != (bandwidth > 0)) {
    throw UsageError("--bytes and --bandwidth go together, both above 0");
  }
  if (objective != "makespan" && objective != "span") {
    throw UsageError(fmt::format("--objective {}: must be makespan or span", objective));
  }
  const std::set<std::string> formats = {"table", "json", "csv", "ascii", "svg", "trace"};
  if (!formats.contains(format)) {
    throw UsageError(
        fmt::format("--format {}: must be table, json, csv, ascii, svg or trace", format));
  }
}

void PlanOptions::adopt_file(bool ranks_given, bool microbatches_given) {
  if (!schedule.starts_with("csv:")) {
    return;
  }
  const schedule::Placement placement = requested_schedule(schedule, *this).placement;
  if ((ranks_given && ranks != placement.ranks()) ||
      (microbatches_given && microbatches != placement.microbatches())) {
    throw UsageError(fmt::format(
        "--schedule {} is for {} ranks and {} micro-batches; --ranks and --microbatches say {} and "
        "{}: leave them out",
        schedule, placement.ranks(), placement.microbatches(), ranks, microbatches));
  }
  if (chunks != 0 || group != 0) {
    throw UsageError(fmt::format("--schedule {}: leave out --chunks and --group", schedule));
  }
  ranks = placement.ranks();
  microbatches = placement.microbatches();
}

schedule::Schedule requested_schedule(const std::string& name, const PlanOptions& options) {
  if (name.starts_with("csv:")) {
    return schedule::read_csv(name.substr(4));
  }
  if (name == "auto") {
    return searched(options);
  }
  schedule::Request request{.name = name,
                            .ranks = options.ranks,
                            .microbatches = options.microbatches,
                            .chunks = options.chunks,
                            .group = options.group,
                            .costs = options.costs};
  if (options.model.given()) {
    request.costs = costs_of_one_stage_per_rank(options);
  }
  return schedule::generate(request);
}

std::vector<Plan> make_plans(const PlanOptions& options) {
  const LinkModel link = link_model(options.model.link);
  std::vector<Plan> plans;
  if (options.schedule != "all") {
    plans.push_back(make_plan(requested_schedule(options.schedule, options), options, link));
    if (const std::string reason = does_not_fit(plans.front(), options); !reason.empty()) {
      throw DoesNotFit(reason);
    }
    return plans;
  }
  std::vector<std::string> names = schedule::schedule_names();
  names.push_back("auto");
  for (const std::string& name : names) {
    std::string reason;
    try {
      Plan plan = make_plan(requested_schedule(name, options), options, link);
      reason = does_not_fit(plan, options);
      if (reason.empty()) {
        plans.push_back(std::move(plan));
      }
    } catch (const Error& error) {
      if (error.code() != ExitCode::usage && error.code() != ExitCode::does_not_fit) {
        throw;
      }
      reason = error.what();
    }
    if (!reason.empty()) {
      fmt::print(stderr, "pipetrain: {} left out: {}\n", name, reason);
    }
  }
  if (plans.empty()) {
    throw DoesNotFit("no schedule fits these numbers; the reasons are above");
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
