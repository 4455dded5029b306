#include "pipetrain/train/evaluator.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <span>

#include "pipetrain/device/check.h"

namespace pipetrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto progress_interval = std::chrono::seconds(2);
constexpr int64_t in_flight = 2;  // passes
// Passes are numbered apart from training steps, so that a message of the one can never be taken
// for one of the other. Even, as the host's buffers take turns.
constexpr int64_t first_pass_of_all = int64_t(1) << 40;

size_t loss_bytes(Precision precision, const Evaluation& evaluation) {
  return size_t(evaluation.pass.microbatches) * accumulator_bytes(precision);
}

bool rank_has_head(const BudgetRequest& request, const Evaluation& evaluation, int rank) {
  const std::vector<StageLayers> held = held_stages(request, evaluation.lowered.placement, rank);
  return std::any_of(held.begin(), held.end(), [](const StageLayers& s) { return s.head; });
}

}  // namespace

size_t Evaluator::bytes(const BudgetRequest& request, const Evaluation& evaluation, int rank) {
  return StepBuffers::bytes(request, evaluation.lowered.placement, rank) +
         (rank_has_head(request, evaluation, rank)
              ? aligned(loss_bytes(request.precision, evaluation))
              : 0);
}

Evaluator::Evaluator(const Evaluation& evaluation, const BudgetRequest& request, const Grid& grid,
                     const Parts& parts, Region& region)
    : evaluation_(evaluation),
      precision_(request.precision),
      grid_(grid),
      compute_(parts.compute),
      watchdog_(parts.watchdog),
      step_buffers_(request, evaluation.lowered.placement, grid.pipeline_rank(),
                    rank_has_head(request, evaluation, grid.pipeline_rank())
                        ? region.take_bytes(loss_bytes(request.precision, evaluation))
                        : nullptr,
                    region),
      pinned_losses_(size_t(in_flight) * loss_bytes(request.precision, evaluation)),
      first_pass_(first_pass_of_all) {
  const schedule::Placement& placement = evaluation.lowered.placement;
  Executor::Stages stages;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    if (placement.holds(grid.pipeline_rank(), stage)) {
      stages_.push_back(make_gpt_stage(request.model, request.shape, request.precision,
                                       request.stages[size_t(stage)], parts.store,
                                       step_buffers_.data(), parts.workspace));
      stages[stage] = {stages_.back().get()};
    }
  }
  executor_ =
      std::make_unique<Executor>(evaluation.lowered, grid.pipeline_rank(), std::move(stages),
                                 parts.exchange, parts.activations, parts.gradient_slots, compute_,
                                 Executor::Mode::forward_only, StepHooks{}, watchdog_);
}

EvaluationResult Evaluator::run(Control& control, Log& log) {
  const Clock::time_point start = Clock::now();
  Clock::time_point last_line = start;
  losses_.clear();
  const auto end = [&](int64_t pass) {
    finish(pass);
    if (pass + 1 < evaluation_.passes && Clock::now() - last_line > progress_interval) {
      log.info(fmt::format("evaluation: {} of {} passes", pass + 1, evaluation_.passes));
      last_line = Clock::now();
    }
  };
  for (int64_t pass = 0; pass < evaluation_.passes; ++pass) {
    if (pass >= in_flight) {
      end(pass - in_flight);
    }
    submit(pass);
  }
  for (int64_t pass = std::max<int64_t>(evaluation_.passes - in_flight, 0);
       pass < evaluation_.passes; ++pass) {
    end(pass);
  }
  first_pass_ += evaluation_.passes + evaluation_.passes % in_flight;
  const double loss = mean_loss(control);
  return {loss, evaluation_.valid_targets(),
          std::chrono::duration<double>(Clock::now() - start).count()};
}

void Evaluator::submit(int64_t pass) {
  // A micro-batch's loss is the plain sum over its tokens.
  step_buffers_.upload(pass, *evaluation_.batches, grid_.replica(), 1.0, compute_);
  executor_->run_step(first_pass_ + pass);
  if (has_head()) {
    const size_t bytes = loss_bytes(precision_, evaluation_);
    check(
        cudaMemcpyAsync(pinned_losses_.data() + size_t(pass % in_flight) * bytes,
                        step_buffers_.data().losses, bytes, cudaMemcpyDeviceToHost, compute_.get()),
        "cudaMemcpyAsync");
    downloaded_[size_t(pass % in_flight)].record(compute_, {first_pass_ + pass, 0, 0});
  }
}

void Evaluator::finish(int64_t pass) {
  executor_->wait(first_pass_ + pass);
  if (!has_head()) {
    return;
  }
  downloaded_[size_t(pass % in_flight)].synchronize();
  const size_t bytes = loss_bytes(precision_, evaluation_);
  const std::byte* from = pinned_losses_.data() + size_t(pass % in_flight) * bytes;
  for (size_t offset = 0; offset < bytes; offset += accumulator_bytes(precision_)) {
    if (precision_ == Precision::fp64) {
      double loss = 0;
      std::memcpy(&loss, from + offset, sizeof(loss));
      losses_.push_back(loss);
    } else {
      float loss = 0;
      std::memcpy(&loss, from + offset, sizeof(loss));
      losses_.push_back(double(loss));
    }
  }
}

// On rank 0, then everywhere: ranks with the head have the losses of their replica.
double Evaluator::mean_loss(Control& control) const {
  const Watchdog::HostPhase phase(
      watchdog_, fmt::format("rank {} waits for the losses of all ranks", control.rank()));
  const auto gathered = control.gather(std::as_bytes(std::span(losses_)), 0);
  double mean = 0;
  if (control.rank() == 0) {
    const schedule::Placement& placement = evaluation_.lowered.placement;
    const int head = placement.owner(placement.stages() - 1, 0);
    const size_t microbatches = size_t(evaluation_.passes) * size_t(evaluation_.pass.microbatches);
    double sum = 0;
    for (size_t i = 0; i < microbatches; ++i) {
      for (int replica = 0; replica < grid_.replicas; ++replica) {
        double loss = 0;
        std::memcpy(&loss,
                    gathered[size_t(head * grid_.replicas + replica)].data() + i * sizeof(double),
                    sizeof(double));
        sum += loss;
      }
    }
    mean = sum / double(evaluation_.valid_targets());
  }
  std::vector<std::byte> bytes(sizeof(double));
  std::memcpy(bytes.data(), &mean, sizeof(double));
  control.broadcast(bytes, 0);
  std::memcpy(&mean, bytes.data(), sizeof(double));
  return mean;
}

}  // namespace pipetrain
