#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "pipetrain/comm/communicator.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/model/parameters.h"
#include "pipetrain/model/stage.h"
#include "pipetrain/runtime/exchange.h"
#include "pipetrain/runtime/executor.h"
#include "pipetrain/runtime/pool.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/train/evaluator.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/optimizer.h"
#include "pipetrain/train/step_data.h"

namespace pipetrain {

// One rank's part of a job on its device: memory, stages, channels, optimizer. Everything is
// allocated and connected by the constructor, which is collective over the job; a step only submits
// work. Several engines may live in one process.
class Engine {
 public:
  // `job` must outlive the engine; `watchdog` may be null. Throws DoesNotFit, on one rank alone
  // where another process has taken memory since the job was planned.
  Engine(const Job& job, Control& control, Watchdog* watchdog);
  ~Engine();

  // Sets the weights of --init, or initial ones. Blocks the host.
  void set_initial_weights();

  // Submits step `step` (0 is the first). At most two steps may be in flight. Throws UsageError
  // where the data files have changed since they were opened.
  void submit(int64_t step, const StepInputs& inputs);
  // Waits for the end of that step; each result is taken once.
  StepResult wait(int64_t step) { return optimizer_->wait_result(step); }
  RankTrace trace(int64_t step) { return executor_->trace(step); }
  void set_clock() { executor_->set_clock(); }
  // Of the job's evaluation, else nullptr. Runs between steps, when their results were taken.
  Evaluator* evaluator() { return evaluator_.get(); }
  // The host waits until nothing is in flight on this rank.
  void drain() { compute_.synchronize(); }

  const ParameterStore& parameters() const { return *store_; }
  const Pool& activations() const { return *activations_; }
  const Pool& gradient_slots() const { return *gradient_slots_; }

 private:
  using Workspace = std::unique_ptr<GptWorkspace, void (*)(GptWorkspace*)>;

  void make_groups(Control& control);
  // The stages of this rank, with a workspace from `region` that is put into `workspace`.
  Executor::Stages make_stages(WorkspaceUse use, Region& region, Workspace& workspace);

  const Job& job_;
  Watchdog* watchdog_;
  Buffer weights_;
  Buffer gradients_;
  Buffer moments_;
  Buffer activation_memory_;
  Buffer gradient_slot_memory_;
  Buffer channel_memory_;
  Buffer workspace_memory_;
  Buffer step_memory_;
  Stream compute_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Communicator> everyone_;
  std::unique_ptr<Communicator> copies_;  // where there is more than one
  std::unique_ptr<Communicator> tied_;    // on the ends of a tied embedding, where they lie apart
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<StepBuffers> step_buffers_;
  Workspace workspace_{nullptr, nullptr};
  Workspace beside_workspace_{nullptr, nullptr};  // where the schedule has overlapped pairs
  std::vector<std::unique_ptr<Stage>> stages_;    // every one for each weight version
  std::unique_ptr<Pool> activations_;
  std::unique_ptr<Pool> gradient_slots_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Evaluator> evaluator_;
  StepInputs inputs_;  // of the step that is being submitted
  int64_t step_ = 0;
};

}  // namespace pipetrain
