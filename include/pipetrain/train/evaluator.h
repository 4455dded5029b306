#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/comm/grid.h"
#include "pipetrain/device/event.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/model/parameters.h"
#include "pipetrain/model/stage.h"
#include "pipetrain/runtime/exchange.h"
#include "pipetrain/runtime/executor.h"
#include "pipetrain/runtime/pool.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/evaluation.h"
#include "pipetrain/train/log.h"
#include "pipetrain/train/step_data.h"

namespace pipetrain {

// Runs an evaluation on one rank: forward only, on weights, slots and channels that exist. Of its
// own it has tokens and losses. Writes into one activation slot and into the workspace, so that
// nothing else changes.
class Evaluator {
 public:
  // What it uses; all must outlive it. `exchange` has the channels of the evaluation's list,
  // `activations` at least one slot; `watchdog` may be null.
  struct Parts {
    const ParameterStore& store;
    GptWorkspace& workspace;
    Pool& activations;
    Pool& gradient_slots;  // not used: there may be none
    Exchange& exchange;
    const Stream& compute;
    Watchdog* watchdog = nullptr;
  };
  // Device memory that it takes from its region on pipeline rank `rank`.
  static size_t bytes(const BudgetRequest& request, const Evaluation& evaluation, int rank);
  // `evaluation` must outlive the evaluator.
  Evaluator(const Evaluation& evaluation, const BudgetRequest& request, const Grid& grid,
            const Parts& parts, Region& region);

  // Collective over the job, between steps; waits for the end. The result is the same on all ranks,
  // and bit by bit the same however ranks, replicas and passes are cut: the losses of the
  // micro-batches are added in their order. A long run writes how far it is into `log`.
  EvaluationResult run(Control& control, Log& log);

 private:
  bool has_head() const { return step_buffers_.data().losses != nullptr; }
  void submit(int64_t pass);
  void finish(int64_t pass);
  double mean_loss(Control& control) const;

  const Evaluation& evaluation_;
  Precision precision_;
  Grid grid_;
  const Stream& compute_;
  Watchdog* watchdog_;
  StepBuffers step_buffers_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Executor> executor_;
  PinnedBuffer pinned_losses_;  // of two passes
  std::array<Event, 2> downloaded_;
  std::vector<double> losses_;  // of this rank's micro-batches, with the head
  int64_t first_pass_;          // the number of the run's first pass among all
};

}  // namespace pipetrain
