#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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
  std::function<void(const schedule::LoweredAction&)> optimizer_step;
};

// Walks one rank's lowered list: the list is the program. Nothing here allocates or waits. The F of
// an overlapped pair runs on a stream of the executor's own, beside the backward on the compute
// stream: after all that was submitted before the pair, and before all that comes after it.
class Executor {
 public:
  enum class Mode { training, forward_only };  // forward_only: no activation is kept

  // By global stage: the stage once for every slot of the rank's weight versions, in order.
  using Stages = std::map<int, std::vector<Stage*>>;

  // `rank` is the pipeline rank; `stages` maps the global stages that it holds. `watchdog` may be
  // null. `beside`: the same stages for the F of overlapped pairs, such that both may be used from
  // two streams at once; not used where the list has no pairs. All arguments must outlive the
  // executor.
  Executor(const schedule::LoweredSchedule& schedule, int rank, Stages stages, Exchange& exchange,
           Pool& activations, Pool& gradients, const Stream& compute, Mode mode, StepHooks hooks,
           Watchdog* watchdog, Stages beside = {});

  // Submits one step; returns without waiting for it. At most two steps may be in flight.
  void run_step(int64_t step);

  // The host waits until the rank's part of that step, one of the last two, has ended.
  void wait(int64_t step) const;

  // Ties device times to the host's clock. The compute stream must be idle; the host waits.
  void set_clock();
  // Times of step `step`, one of the last two. Waits for its end on the host.
  RankTrace trace(int64_t step) const;

 private:
  // The events of a step; two sets, so that one step can be read while the next one runs.
  struct StepEvents {
    explicit StepEvents(size_t entries);
    Event begin;
    std::vector<Event> started;
    std::vector<Event> ended;
    size_t first_watchdog_item = 0;
  };

  // Where work is submitted to, and through which stages.
  struct Lane {
    const Stream* stream = nullptr;
    Stages stages;
  };

  void run(const schedule::LoweredAction& entry, const Lane& lane, Event& started, Event& ended);
  void forward(const schedule::LoweredAction& entry, const Lane& lane, Event& started,
               Event& ended);
  void backward(const schedule::LoweredAction& entry, Event& started, Event& ended);
  void backward_weight(const schedule::LoweredAction& entry, Event& started, Event& ended);
  static Stage& stage_of(const schedule::LoweredAction& entry, const Lane& lane);
  std::string describe(const schedule::LoweredAction& entry) const;
  StepEvents& events(int64_t step) { return events_[size_t(step % 2)]; }
  const StepEvents& events(int64_t step) const { return events_[size_t(step % 2)]; }
  Tag tag(const schedule::LoweredAction& entry) const;

  const schedule::LoweredSchedule& schedule_;
  const std::vector<schedule::LoweredAction>& list_;
  int rank_;
  Exchange& exchange_;
  Pool& activations_;
  Pool& gradients_;
  const Stream& compute_;
  Lane main_;
  std::optional<Stream> second_stream_;  // with pairs
  Lane beside_;
  Event fork_;  // what was submitted before the pair
  bool keep_;
  StepHooks hooks_;
  Watchdog* watchdog_;
  std::array<StepEvents, 2> events_;
  Event clock_{Event::Timing::on};
  double clock_seconds_ = 0;  // since the Unix epoch
  int64_t step_ = 0;
};

}  // namespace pipetrain
