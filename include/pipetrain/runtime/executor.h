#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "pipetrain/model/stage.h"
#include "pipetrain/runtime/exchange.h"
#include "pipetrain/runtime/pool.h"
#include "pipetrain/runtime/trace.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/schedule/schedule.h"

namespace pipetrain {

// What the executor calls for the entries that are not its own business. Both only submit work to
// the compute stream, or make it wait for work elsewhere.
struct StepHooks {
  std::function<void(int stage)> reduce_gradients;
  std::function<void()> optimizer_step;
};

// Walks one rank's lowered list: the list is the program.
class Executor {
 public:
  // `stages` maps the global stages that this rank holds. `watchdog` may be null. All arguments
  // must outlive the executor.
  Executor(const schedule::LoweredSchedule& schedule, int rank, std::map<int, Stage*> stages,
           Exchange& exchange, Pool& activations, Pool& gradients, const Stream& compute,
           StepHooks hooks, Watchdog* watchdog);

  // Submits one step; returns without waiting for it.
  void run_step(int64_t step);

  // Events of the last submitted step that has ended. The host waits for its end.
  RankTrace trace();

 private:
  void run(const schedule::LoweredAction& entry, size_t index);

  const schedule::LoweredSchedule& schedule_;
  int rank_;
  std::map<int, Stage*> stages_;
  Exchange& exchange_;
  Pool& activations_;
  Pool& gradients_;
  const Stream& compute_;
  StepHooks hooks_;
  Watchdog* watchdog_;
  std::vector<Event> started_;
  std::vector<Event> ended_;
  int64_t step_ = 0;
};

}  // namespace pipetrain
