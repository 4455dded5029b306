#include "pipetrain/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "pipetrain/comm/agree.h"
#include "pipetrain/device/info.h"
#include "pipetrain/model/flops.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/train/engine.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/start.h"
#include "pipetrain/train/weights.h"
#include "train/outputs.h"

namespace pipetrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto progress_interval = std::chrono::seconds(2);

// What made a NaN decides its sign, which says nothing.
double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

// One run of train() on one rank.
class Trainer {
 public:
  Trainer(const TrainConfig& config, Control& control, const StepObserver& on_step);
  ~Trainer() { watchdog_->set_recorder(nullptr); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  TrainReport run();
  // The run is to end with this error.
  void fail(const std::string& error);

 private:
  // A step whose result is known, but not yet what share of it the other ranks were busy.
  struct Unmeasured {
    StepMetrics metrics;
    double busy = 0;    // of this rank, milliseconds
    double window = 0;  // from the start of the step to the end of this rank's last action
  };

  // Also waits for the other ranks: none must be waited for longer than --timeout.
  Watchdog::HostPhase host_phase(const std::string& what) {
    return {watchdog(), fmt::format("rank {} {}", control_.rank(), what)};
  }
  bool leads() const { return control_.rank() == 0; }
  Watchdog* watchdog() { return watchdog_ ? &*watchdog_ : nullptr; }
  void prepare(const TrainConfig& config);
  void announce();
  void loop();
  void submit(int64_t step);
  void finish_until(int64_t step);
  void finish(int64_t step);
  void after_first_step();
  bool validates_after(int64_t steps) const;
  void validate(int64_t steps);
  void measure_rest();
  void note_skipped(const StepMetrics& metrics);
  void publish(int64_t step, const std::vector<double>& busy);
  void gather_trace();
  void write_outputs();
  std::vector<std::vector<std::byte>> gather_by_pipeline_rank(std::span<const std::byte> data);

  Control& control_;
  const StepObserver& on_step_;
  std::optional<Watchdog> watchdog_;
  std::optional<SharedProgress> progress_;
  std::optional<Job> job_;
  std::optional<Outputs> outputs_;
  std::optional<Engine> engine_;
  std::optional<TrainReport> report_;
  std::string device_name_;
  double peak_flops_ = 0;  // of one device, dense bf16; 0: unknown
  Clock::time_point start_;
  Clock::time_point last_end_;
  Clock::time_point last_progress_;
  int64_t finished_ = 0;
  bool stop_ = false;
  std::map<int64_t, Unmeasured> unmeasured_;
  std::map<int64_t, int64_t> busy_of_;  // submitted step -> the step whose busy time went with it
  int64_t busy_sent_ = 0;
};

Trainer::Trainer(const TrainConfig& config, Control& control, const StepObserver& on_step)
    : control_(control), on_step_(on_step) {
  // Also while the ranks agree on whether the flags, --timeout among them, are right.
  const double timeout = config.timeout > 0 ? config.timeout : TrainConfig().timeout;
  watchdog_.emplace(std::chrono::duration<double>(timeout),
                    expire_on(control_.rank(), config.data_parallel));
  progress_.emplace(*watchdog_, control_);
  prepare(config);
}

void Trainer::prepare(const TrainConfig& config) {
  job_.emplace(plan_job(config, control_, watchdog()));
  const Watchdog::HostPhase phase = host_phase("opens its files and waits for the others");
  agree(control_, [&] { outputs_.emplace(*job_, leads()); });
  // For whoever has no more than the run's directory.
  watchdog_->set_recorder([this](const std::string& reason) { outputs_->log().last_line(reason); });
}

void Trainer::fail(const std::string& error) {
  watchdog_->fail(fmt::format("rank {} ends: {}", control_.rank(), error));
  outputs_->log().last_line(error);
}

std::vector<std::vector<std::byte>> Trainer::gather_by_pipeline_rank(
    std::span<const std::byte> data) {
  std::vector<std::vector<std::byte>> all = control_.gather(data, 0);
  std::vector<std::vector<std::byte>> first_replica;
  for (size_t rank = 0; rank < all.size(); rank += size_t(job_->grid.replicas)) {
    first_replica.push_back(std::move(all[rank]));
  }
  return first_replica;
}

void Trainer::announce() {
  const Watchdog::HostPhase phase = host_phase("waits for the budgets of all ranks");
  const DeviceInfo device = device_info(control_.local_rank() % device_count());
  device_name_ = device.emulated ? "host" : "cuda";
  peak_flops_ = dense_bf16_peak_flops(device.name);
  log_job(*job_, device.name, outputs_->log());
  log_budgets(job_->budget, control_, outputs_->log());
}

TrainReport Trainer::run() {
  announce();
  engine_.emplace(*job_, control_, watchdog());
  {
    const Watchdog::HostPhase phase = host_phase("sets its weights and waits for the others");
    agree(control_, [&] { engine_->set_initial_weights(); });
  }
  report_.emplace(TrainReport{.first = {},
                              .last = {},
                              .skipped = 0,
                              .peaks = {},
                              .budget = job_->budget,
                              .schedule = job_->schedule,
                              .planned = job_->planned,
                              .measured = job_->planned,
                              .profiled = job_->costs.has_value(),
                              .validations = {},
                              .stopped = false});
  loop();
  write_outputs();
  const Watchdog::HostPhase phase = host_phase("closes its channels");
  engine_.reset();
  return std::move(*report_);
}

// The host submits one step ahead of the device and reads each result one step late.
void Trainer::loop() {
  validate(0);
  start_ = last_end_ = last_progress_ = Clock::now();
  int64_t step = 0;
  for (; step < job_->config.steps && !stop_; ++step) {
    if (step + 1 == job_->config.steps) {
      // The last step is the one that is drawn: all ranks begin it together.
      const Watchdog::HostPhase phase = host_phase("waits for all ranks before the last step");
      finish_until(step);
      engine_->drain();
      control_.barrier();
      engine_->set_clock();
    }
    submit(step);
    const bool first = step == 0;
    const bool validates = validates_after(step + 1);
    finish_until(first || validates ? step + 1 : step);
    if (first) {
      after_first_step();
    }
    if (validates) {
      validate(step + 1);
    }
  }
  finish_until(step);
  report_->stopped = step < job_->config.steps;
  if (report_->stopped && !outputs_->failed()) {
    outputs_->log().info(
        fmt::format("SIGUSR1: stopped after step {} of {}", step, job_->config.steps));
  }
  if (!validates_after(step)) {
    validate(step);
  }
  measure_rest();
  gather_trace();
}

void Trainer::submit(int64_t step) {
  // Busy times are handed around in order, one with each step, as soon as they are known.
  const bool known = busy_sent_ < finished_;
  const double busy = known ? unmeasured_.at(busy_sent_).busy : 0;
  busy_of_[step] = known ? busy_sent_++ : -1;
  engine_->submit(step, {.learning_rate = job_->config.rate().at(step),
                         .stop = stop_requested() || outputs_->failed(),
                         .busy = busy});
}

void Trainer::finish_until(int64_t step) {
  while (finished_ < step) {
    finish(finished_++);
  }
}

void Trainer::finish(int64_t step) {
  const StepResult result = engine_->wait(step);
  const Clock::time_point now = Clock::now();
  const RankTrace trace = engine_->trace(step);
  StepMetrics metrics;
  metrics.step = step + 1;
  metrics.loss = without_sign_of_nan(result.loss);
  metrics.grad_norm = without_sign_of_nan(result.grad_norm);
  metrics.skipped = result.skipped;
  metrics.learning_rate = job_->config.rate().at(step);
  metrics.tokens = int64_t(job_->batch.tokens_per_step());
  metrics.step_seconds = std::chrono::duration<double>(now - last_end_).count();
  metrics.tokens_per_second = double(metrics.tokens) / metrics.step_seconds;
  if (peak_flops_ > 0) {
    metrics.mfu = model_flops_utilisation(job_->model.config, job_->batch.sequence,
                                          metrics.tokens_per_second, control_.size(), peak_flops_);
  }
  metrics.bubble_planned = job_->planned.bubble_fraction();
  metrics.device = device_name_;
  unmeasured_[step] = {std::move(metrics), trace.busy(), trace.compute_end()};
  last_end_ = now;
  stop_ = stop_ || result.stop;
  publish(busy_of_.at(step), result.busy);
  busy_of_.erase(step);
}

// The first step shows how many slots are written, in the memory itself.
void Trainer::after_first_step() {
  const Watchdog::HostPhase phase = host_phase("waits for all ranks after the first step");
  engine_->drain();
  const Pool& activations = engine_->activations();
  const Pool& gradients = engine_->gradient_slots();
  PeakActivations own = {activations.touched_slots(), activations.slots(), activations.slot_bytes(),
                         gradients.touched_slots(),   gradients.slots(),   gradients.slot_bytes()};
  const auto all = gather_by_pipeline_rank(std::as_bytes(std::span(&own, 1)));
  report_->peaks.resize(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::memcpy(&report_->peaks[rank], all[rank].data(), sizeof(PeakActivations));
  }
  if (!job_->config.dump_gradients.empty()) {
    write_tensors(job_->config.dump_gradients, StoredTensor::gradient, engine_->parameters(),
                  job_->config.precision, control_);
  }
  last_end_ = Clock::now();
}

bool Trainer::validates_after(int64_t steps) const {
  return job_->config.validation_every && steps % *job_->config.validation_every == 0;
}

// After so many steps, whose results are known.
void Trainer::validate(int64_t steps) {
  Evaluator* evaluator = engine_->evaluator();
  if (evaluator == nullptr) {
    return;
  }
  const EvaluationResult result = evaluator->run(control_, outputs_->log());
  outputs_->log().info(
      fmt::format("validation loss {:.4f} {}: {} tokens in {:.1f} s", result.loss,
                  steps == 0 ? "before step 1" : fmt::format("after step {}", steps),
                  result.targets, result.seconds));
  report_->validations.push_back({steps, result});
  if (steps > 0) {
    unmeasured_.at(steps - 1).metrics.validation_loss = result.loss;
  }
  last_end_ = Clock::now();
}

// The last steps' busy times travelled with no step.
void Trainer::measure_rest() {
  const Watchdog::HostPhase phase = host_phase("waits for the last times of all ranks");
  while (!unmeasured_.empty()) {
    const auto& [step, unmeasured] = *unmeasured_.begin();
    const auto all = gather_by_pipeline_rank(std::as_bytes(std::span(&unmeasured.busy, 1)));
    std::vector<double> busy(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      std::memcpy(&busy[rank], all[rank].data(), sizeof(double));
    }
    publish(step, busy);
  }
}

// Writes the metrics of a step once all ranks' busy times are known.
void Trainer::publish(int64_t step, const std::vector<double>& busy) {
  const auto found = unmeasured_.find(step);
  if (found == unmeasured_.end()) {
    return;
  }
  StepMetrics metrics = std::move(found->second.metrics);
  const double window = found->second.window;
  unmeasured_.erase(found);
  if (window > 0 && !busy.empty()) {
    // As planned: the ideal is the time of the busiest rank.
    metrics.bubble_measured = 1 - *std::max_element(busy.begin(), busy.end()) / window;
  }
  for (const PeakActivations& peak : report_->peaks) {
    metrics.peak_activations.push_back(peak.measured_slots);
    metrics.activation_cap.push_back(peak.cap_slots);
  }
  if (leads()) {
    const Watchdog::HostPhase phase = host_phase("writes its metrics");
    outputs_->write_metrics(metrics);
  }
  if (metrics.skipped) {
    report_->skipped += 1;
    note_skipped(metrics);
  }
  const Clock::time_point now = Clock::now();
  const bool last = metrics.step == job_->config.steps;
  if (metrics.step == 1 || last || now - last_progress_ > progress_interval) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const double left = elapsed / double(metrics.step) * double(job_->config.steps - metrics.step);
    outputs_->log().info(progress_line(metrics, job_->config.steps, left));
    last_progress_ = now;
  }
  if (on_step_) {
    on_step_(metrics);
  }
  if (metrics.step == 1) {
    report_->first = metrics;
  }
  report_->last = std::move(metrics);
}

// The first ones; the summary counts all.
void Trainer::note_skipped(const StepMetrics& metrics) {
  constexpr int64_t most = 10;
  if (report_->skipped <= most) {
    outputs_->log().warning(
        fmt::format("step {}: loss {} or gradient norm {} is not finite, update skipped{}",
                    metrics.step, metrics.loss, metrics.grad_norm,
                    report_->skipped == most ? "; more of these are only counted" : ""));
  }
}

void Trainer::gather_trace() {
  const Watchdog::HostPhase phase = host_phase("waits for the traces of all ranks");
  const auto all = gather_by_pipeline_rank(serialize(engine_->trace(finished_ - 1)));
  if (!leads()) {
    return;
  }
  std::vector<RankTrace> ranks;
  for (const std::vector<std::byte>& bytes : all) {
    ranks.push_back(deserialize_trace(bytes));
  }
  report_->measured = measured_step(ranks, job_->planned);
}

// The weights first: they cost most.
void Trainer::write_outputs() {
  const Watchdog::HostPhase phase = host_phase("writes the results and waits for the others");
  const TrainConfig& config = job_->config;
  if (!config.export_dir.empty()) {
    const HuggingFaceConfig* source = job_->model.source ? &*job_->model.source : nullptr;
    export_huggingface(config.export_dir, job_->model.config, source, engine_->parameters(),
                       config.precision, control_);
  }
  if (leads()) {
    outputs_->write_trace(report_->measured);
    outputs_->require_complete();
  }
}

}  // namespace

TrainReport train(const TrainConfig& config, Control& control, const StepObserver& on_step) {
  Trainer trainer(config, control, on_step);
  try {
    return trainer.run();
  } catch (const std::exception& error) {
    trainer.fail(error.what());
    throw;
  }
}

}  // namespace pipetrain
