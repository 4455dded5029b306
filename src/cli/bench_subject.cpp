#include "cli/bench_subject.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "pipetrain/comm/agree.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/runtime/exchange.h"
#include "pipetrain/runtime/executor.h"
#include "pipetrain/runtime/synthetic_stage.h"
#include "pipetrain/train/engine.h"

namespace pipetrain {
namespace {

class SyntheticSubject final : public BenchSubject {
 public:
  SyntheticSubject(const schedule::LoweredSchedule& schedule, const schedule::Simulation& planned,
                   size_t message_bytes, const Grid& grid, Control& control, Watchdog& watchdog)
      : watchdog_(watchdog),
        memory_(synthetic_bytes(schedule, grid.pipeline_rank(), message_bytes)),
        region_(memory_),
        activations_("activation slots", slots(schedule.activation_slots, grid), message_bytes,
                     region_),
        gradients_("gradient slots", slots(schedule.gradient_slots, grid), message_bytes, region_) {
    const int rank = grid.pipeline_rank();
    exchange_ = std::make_unique<Exchange>(
        schedule, grid, control, message_bytes, region_,
        transfers_need_one_stream() ? std::make_shared<Stream>(StreamPriority::high) : nullptr,
        &watchdog);
    Executor::Stages stages;
    const int versions = schedule.weight_versions.at(size_t(rank));
    for (int stage = 0; stage < schedule.placement.stages(); ++stage) {
      if (schedule.placement.holds(rank, stage)) {
        stages_.push_back(std::make_unique<SyntheticStage>(planned.ranks[size_t(rank)].intervals,
                                                           stage, schedule.placement.microbatches(),
                                                           message_bytes));
        stages[stage].assign(size_t(versions), stages_.back().get());
      }
    }
    activations_.poison();
    executor_ = std::make_unique<Executor>(
        schedule, rank, stages, *exchange_, activations_, gradients_, compute_,
        Executor::Mode::training,
        StepHooks{.reduce_gradients = [](int) {}, .optimizer_step = [](const auto&) {}}, &watchdog,
        stages);
    watchdog.set_error_probe([this] {
      const ncclResult_t result = exchange_->async_error();
      return result == ncclSuccess ? std::string()
                                   : fmt::format("NCCL: {}", ncclGetErrorString(result));
    });
  }
  ~SyntheticSubject() override { watchdog_.clear(); }

  void set_clock() override { executor_->set_clock(); }
  void submit(int64_t step) override { executor_->run_step(step); }
  RankTrace wait(int64_t step) override {
    compute_.synchronize();
    return executor_->trace(step);
  }
  const Pool& activations() const override { return activations_; }

 private:
  static int slots(const std::vector<int>& per_rank, const Grid& grid) {
    return per_rank.at(size_t(grid.pipeline_rank()));
  }

  Watchdog& watchdog_;
  Buffer memory_;
  Region region_;
  Pool activations_;
  Pool gradients_;
  Stream compute_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::unique_ptr<SyntheticStage>> stages_;
  std::unique_ptr<Executor> executor_;
};

class ModelSubject final : public BenchSubject {
 public:
  ModelSubject(const Job& job, Control& control, Watchdog& watchdog)
      : job_(job), engine_(job, control, &watchdog) {
    const Watchdog::HostPhase phase(&watchdog,
                                    fmt::format("rank {} sets its weights", control.rank()));
    agree(control, [&] { engine_.set_initial_weights(); });
  }

  void set_clock() override {
    engine_.drain();
    engine_.set_clock();
  }
  void submit(int64_t step) override {
    engine_.submit(step, {.learning_rate = job_.config.rate().at(step), .stop = false, .busy = 0});
  }
  RankTrace wait(int64_t step) override {
    engine_.wait(step);
    return engine_.trace(step);
  }
  const Pool& activations() const override { return engine_.activations(); }

 private:
  const Job& job_;
  Engine engine_;
};

}  // namespace

size_t synthetic_bytes(const schedule::LoweredSchedule& schedule, int rank, size_t message_bytes) {
  return Exchange::bytes(schedule, rank, message_bytes) +
         Pool::bytes(schedule.activation_slots.at(size_t(rank)), message_bytes) +
         Pool::bytes(schedule.gradient_slots.at(size_t(rank)), message_bytes);
}

std::unique_ptr<BenchSubject> make_synthetic_subject(const schedule::LoweredSchedule& schedule,
                                                     const schedule::Simulation& planned,
                                                     size_t message_bytes, const Grid& grid,
                                                     Control& control, Watchdog& watchdog) {
  return std::make_unique<SyntheticSubject>(schedule, planned, message_bytes, grid, control,
                                            watchdog);
}

std::unique_ptr<BenchSubject> make_model_subject(const Job& job, Control& control,
                                                 Watchdog& watchdog) {
  return std::make_unique<ModelSubject>(job, control, watchdog);
}

}  // namespace pipetrain
