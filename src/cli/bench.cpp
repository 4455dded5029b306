#include "cli/bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <span>

#include "cli/bench_figures.h"
#include "cli/bench_subject.h"
#include "cli/random_tokens.h"
#include "pipetrain/comm/agree.h"
#include "pipetrain/device/check.h"
#include "pipetrain/device/info.h"
#include "pipetrain/error.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/start.h"

#ifdef PIPETRAIN_HOST
#include <emulator.h>
#endif

namespace pipetrain {
namespace {

constexpr int synthetic_warm_up = 1;  // steps that are not counted
constexpr int model_warm_up = 2;

// The repeats of one schedule as rank 0 sees them.
struct Samples {
  std::vector<std::vector<RankTrace>> traces;  // [repeat][pipeline rank]
  std::vector<int> peak_activations;
  std::vector<int> activation_cap;
};

// As many as one step takes, again in every step.
void use_random_tokens(TrainConfig& config, std::optional<RandomTokens>& tokens) {
  constexpr int gpt2_vocabulary = 50257;  // that of a shard, where nothing else says
  config.data = {"random tokens"};
  config.check();
  const ModelChoice model = choose_model(config, gpt2_vocabulary);
  const BatchShape step = {.microbatches = config.microbatches,
                           .replicas = config.data_parallel,
                           .batch = config.microbatch_size,
                           .sequence = model.sequence};
  tokens.emplace(step.tokens_per_step() + 1, model.config.vocabulary);
  config.data = {tokens->path()};
}

// What all ranks must have in common.
std::string to_text(const BenchOptions& options) {
  const schedule::Costs& costs = options.costs;
  return fmt::format(
      "{} --synthetic {} --repeat {} --bytes {} --bandwidth {} --latency {} --forward {} "
      "--backward-input {} --backward-weight {} --overlapped {} --weight-memory {}",
      common_flags(options.train), options.synthetic, options.repeat, options.bytes,
      options.bandwidth, costs.latency, fmt::join(costs.forward, ","),
      fmt::join(costs.backward_input, ","), fmt::join(costs.backward_weight, ","),
      fmt::join(costs.overlapped, ","), costs.weight_memory);
}

class Bench {
 public:
  Bench(const BenchOptions& options, Control& control)
      : options_(options),
        control_(control),
        watchdog_(std::chrono::duration<double>(options.train.timeout),
                  expire_on(control.rank(), options.train.data_parallel)),
        progress_(watchdog_, control) {}

  std::vector<BenchResult> run();

 private:
  bool leads() const { return control_.rank() == 0; }
  // Also waits for the other ranks: none must be waited for longer than --timeout.
  Watchdog::HostPhase host_phase(const std::string& what) {
    return {&watchdog_, fmt::format("rank {} {}", control_.rank(), what)};
  }
  void say(const std::string& line) const {
    if (leads()) {
      fmt::print(stderr, "pipetrain: {}\n", line);
    }
  }
  std::vector<std::string> schedule_names() const;
  void prepare_device();
  schedule::Schedule synthetic_schedule(const std::string& name);
  void run_synthetic(const std::string& name);
  void run_model(const std::string& name);
  Samples measured(BenchSubject& subject, int replicas, int warm_up);
  Samples measure(BenchSubject& subject, int replicas, int warm_up);
  void add_result(const std::string& name, const schedule::LoweredSchedule& lowered,
                  const schedule::Costs& costs, const schedule::Simulation& planned,
                  const Samples& samples, std::optional<double> tokens_per_step);

  const BenchOptions& options_;
  Control& control_;
  Watchdog watchdog_;
  SharedProgress progress_;
  size_t free_bytes_ = 0;             // of this rank's device
  int ran_ = 0;                       // schedules
  std::vector<BenchResult> results_;  // on rank 0
};

std::vector<std::string> Bench::schedule_names() const {
  if (options_.train.schedule != "all") {
    return {options_.train.schedule};
  }
  std::vector<std::string> names = schedule::schedule_names();
  names.push_back("auto");
  return names;
}

void Bench::prepare_device() {
  const Watchdog::HostPhase phase = host_phase("looks for its device and waits for the others");
  control_.require_equal(to_text(options_), "the flags");
  agree(control_, [&] { options_.check(control_.size()); });
  free_bytes_ = select_own_device(control_);
  if (!options_.synthetic) {
    return;
  }
#ifdef PIPETRAIN_HOST
  emulator::Settings settings = emulator::settings();
  settings.link_latency_us = options_.costs.latency * 1000;
  settings.link_bytes_per_us = options_.bandwidth / 1000;
  emulator::set_settings(settings);
#else
  if (options_.costs.latency > 0 || options_.bandwidth > 0) {
    say("note: --latency and --bandwidth are planned with only; the links here are what they are");
  }
#endif
}

void require_room(size_t bytes, size_t free_bytes) {
  if (bytes > free_bytes) {
    throw DoesNotFit(fmt::format("slots of --bytes each take {}, but the device has {} free",
                                 readable_bytes(bytes), readable_bytes(free_bytes)));
  }
}

// What is run under a name, with the rank 0's search where there is one: all must run the same.
schedule::Schedule Bench::synthetic_schedule(const std::string& name) {
  const PlanOptions plan = options_.plan(control_.size());
  if (name == "auto") {
    std::string found;
    agree(control_, [&] {
      if (leads()) {
        found = to_csv(requested_schedule(name, plan));
      }
    });
    schedule::Schedule schedule = schedule::parse_csv(control_.broadcast(found, 0), name);
    schedule.name = name;
    return schedule;
  }
  std::optional<schedule::Schedule> schedule;
  agree(control_, [&] {
    schedule = requested_schedule(name, plan);
    if (schedule->placement.ranks() != control_.size()) {
      throw UsageError(fmt::format("--schedule {} is for {} ranks, and mpirun started {}", name,
                                   schedule->placement.ranks(), control_.size()));
    }
  });
  return std::move(*schedule);
}

void Bench::run_synthetic(const std::string& name) {
  const schedule::Costs costs = options_.link_costs();
  std::optional<schedule::LoweredSchedule> made;
  schedule::Simulation planned;
  {
    const Watchdog::HostPhase phase = host_phase("makes the schedule and waits for the others");
    const schedule::Schedule schedule = synthetic_schedule(name);
    agree(control_, [&] {
      for (const std::string& warning : validate(schedule)) {
        say("warning: " + warning);
      }
      made = lower(schedule);
      require_room(synthetic_bytes(*made, control_.rank(), options_.bytes), free_bytes_);
      planned = simulate(*made, costs);
    });
    control_.require_equal(to_csv(*made), "the schedule");
  }
  const schedule::LoweredSchedule& lowered = *made;
  say(fmt::format("{}: {} repeats of about {:.3g} ms", name, options_.repeat, planned.makespan));
  const std::unique_ptr<BenchSubject> subject =
      make_synthetic_subject(lowered, planned, options_.bytes,
                             make_grid(control_.size(), control_.rank(), 1), control_, watchdog_);
  const Samples samples = measured(*subject, 1, synthetic_warm_up);
  add_result(name, lowered, costs, planned, samples, std::nullopt);
}

void Bench::run_model(const std::string& name) {
  TrainConfig config = options_.train;
  config.schedule = name;
  config.steps = model_warm_up + options_.repeat;
  std::optional<RandomTokens> tokens;
  if (config.data.empty()) {
    const Watchdog::HostPhase phase = host_phase("writes its tokens and waits for the others");
    agree(control_, [&] { use_random_tokens(config, tokens); });
  }
  const Job job = plan_job(config, control_, &watchdog_);
  for (const std::string& note : job.notes) {
    say(note);
  }
  say(fmt::format("{}: {} steps, {} of them to warm up", name, config.steps, model_warm_up));
  const std::unique_ptr<BenchSubject> subject = make_model_subject(job, control_, watchdog_);
  const Samples samples = measured(*subject, job.grid.replicas, model_warm_up);
  if (!leads()) {
    return;
  }
  const schedule::Costs costs = measured_costs(job.lowered.placement, samples.traces);
  add_result(name, job.lowered, costs, simulate(job.lowered, costs), samples,
             double(job.batch.tokens_per_step()));
}

Samples Bench::measured(BenchSubject& subject, int replicas, int warm_up) {
  try {
    return measure(subject, replicas, warm_up);
  } catch (const std::exception& error) {
    watchdog_.fail(fmt::format("rank {} ends: {}", control_.rank(), error.what()));
    throw;
  }
}

// Runs the steps, each from a common start.
Samples Bench::measure(BenchSubject& subject, int replicas, int warm_up) {
  Samples samples;
  const auto gather = [&](std::span<const std::byte> data) {
    const Watchdog::HostPhase phase = host_phase("waits for the measurements of all ranks");
    std::vector<std::vector<std::byte>> of_pipeline_ranks;
    std::vector<std::vector<std::byte>> all = control_.gather(data, 0);
    for (size_t rank = 0; rank < all.size(); rank += size_t(replicas)) {
      of_pipeline_ranks.push_back(std::move(all[rank]));
    }
    return of_pipeline_ranks;
  };
  for (int64_t step = 0; step < warm_up + options_.repeat; ++step) {
    {
      const Watchdog::HostPhase phase = host_phase("waits for all ranks before a step");
      subject.set_clock();
      control_.barrier();
    }
    subject.submit(step);  // from here on the watchdog knows what is not finished
    const RankTrace trace = subject.wait(step);
    std::vector<RankTrace> traces;
    for (const std::vector<std::byte>& bytes : gather(serialize(trace))) {
      traces.push_back(deserialize_trace(bytes));
    }
    if (step >= warm_up) {
      samples.traces.push_back(std::move(traces));
    }
  }
  const int slots[2] = {subject.activations().touched_slots(), subject.activations().slots()};
  for (const std::vector<std::byte>& bytes : gather(std::as_bytes(std::span(slots)))) {
    int of_rank[2] = {};
    std::memcpy(of_rank, bytes.data(), sizeof(of_rank));
    samples.peak_activations.push_back(of_rank[0]);
    samples.activation_cap.push_back(of_rank[1]);
  }
  return samples;
}

void Bench::add_result(const std::string& name, const schedule::LoweredSchedule& lowered,
                       const schedule::Costs& costs, const schedule::Simulation& planned,
                       const Samples& samples, std::optional<double> tokens_per_step) {
  if (!leads()) {
    return;
  }
  std::vector<StepFigures> steps;
  for (const std::vector<RankTrace>& traces : samples.traces) {
    steps.push_back(
        step_figures(lowered, planned, costs.latency + costs.transfer, traces, options_.synthetic));
  }
  const auto median_of = [&](double StepFigures::*figure) {
    std::vector<double> values;
    for (const StepFigures& step : steps) {
      values.push_back(step.*figure);
    }
    return median(std::move(values));
  };
  BenchResult result;
  result.schedule = name;
  result.ranks = lowered.placement.ranks();
  result.chunks = lowered.placement.chunks();
  result.microbatches = lowered.placement.microbatches();
  result.makespan_planned = planned.makespan;
  result.makespan_measured = median_of(&StepFigures::makespan);
  result.bubble_planned = planned.bubble_fraction();
  result.bubble_measured = median_of(&StepFigures::bubble);
  result.peak_activations = samples.peak_activations;
  result.activation_cap = samples.activation_cap;
  result.action_overhead_us = median_of(&StepFigures::action_overhead) * 1000;
  std::vector<double> hops;
  for (const StepFigures& step : steps) {
    if (step.hop_overhead) {
      hops.push_back(*step.hop_overhead * 1000);
    }
  }
  if (!hops.empty()) {
    result.hop_overhead_us = median(std::move(hops));
  }
  result.exposed_communication_ms = median_of(&StepFigures::exposed_communication);
  result.device = device_info(control_.local_rank() % device_count()).emulated ? "host" : "cuda";
  if (tokens_per_step) {
    result.tokens_per_second = *tokens_per_step / median_of(&StepFigures::whole_step) * 1000;
  }
  results_.push_back(std::move(result));
}

std::vector<BenchResult> Bench::run() {
  prepare_device();
  ExitCode code = ExitCode::usage;  // where none runs
  for (const std::string& name : schedule_names()) {
    try {
      options_.synthetic ? run_synthetic(name) : run_model(name);
      ++ran_;
    } catch (const AgreedError& error) {  // of all ranks: they go on together
      const bool refused =
          error.code() == ExitCode::usage || error.code() == ExitCode::does_not_fit;
      if (options_.train.schedule != "all" || !refused) {
        throw;
      }
      code = error.code() == ExitCode::does_not_fit ? error.code() : code;
      say(fmt::format("{} left out: {}", name, error.what()));
    }
  }
  if (ran_ == 0) {
    throw AgreedError(code, "no schedule runs with these flags; the reasons are above");
  }
  return std::move(results_);
}

}  // namespace

void BenchOptions::check(int ranks) const {
  if (format != "table" && format != "json") {
    throw UsageError(fmt::format("--format {}: must be table or json", format));
  }
  if (repeat < 1) {
    throw UsageError(fmt::format("--repeat {}: must be at least 1", repeat));
  }
  constexpr size_t most_bytes = 1'000'000'000'000'000;
  if (bytes < 1 || bytes > most_bytes) {
    throw UsageError(fmt::format("--bytes {}: must be at least 1 and at most 1e15", bytes));
  }
  if (synthetic) {
    plan(ranks).check();
  }
}

PlanOptions BenchOptions::plan(int ranks) const {
  PlanOptions options;
  options.schedule = train.schedule;
  options.ranks = ranks;
  options.microbatches = train.microbatches;
  options.chunks = train.chunks.value_or(0);
  options.group = train.group.value_or(0);
  options.costs = costs;
  options.bytes = bandwidth > 0 ? double(bytes) : 0;
  options.bandwidth = bandwidth;
  options.lowered = true;
  return options;
}

// A transfer keeps its channel from start to end: the latency of one cannot hide behind another of
// the same channel.
schedule::Costs BenchOptions::link_costs() const {
  schedule::Costs with_links = costs;
  with_links.transfer = costs.latency + (bandwidth > 0 ? double(bytes) / bandwidth : 0);
  with_links.latency = 0;
  return with_links;
}

std::vector<BenchResult> run_bench(const BenchOptions& options, Control& control) {
  return Bench(options, control).run();
}

}  // namespace pipetrain
