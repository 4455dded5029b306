#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "pipetrain/comm/control.h"
#include "pipetrain/comm/grid.h"
#include "pipetrain/runtime/pool.h"
#include "pipetrain/runtime/trace.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/train/job.h"

namespace pipetrain {

// One rank's part of a pipeline whose steps are measured.
class BenchSubject {
 public:
  virtual ~BenchSubject() = default;

  // Ties this rank's times to the host's clock; nothing may be in flight.
  virtual void set_clock() = 0;
  virtual void submit(int64_t step) = 0;
  // Waits for the end of the step, the last one that was submitted.
  virtual RankTrace wait(int64_t step) = 0;
  virtual const Pool& activations() const = 0;
};

// What make_synthetic_subject allocates on a device.
size_t synthetic_bytes(const schedule::LoweredSchedule& schedule, int rank, size_t message_bytes);

// Both are collective over the job; the arguments must outlive the subject.
// Stages that take the planned times, with messages of `message_bytes`.
std::unique_ptr<BenchSubject> make_synthetic_subject(const schedule::LoweredSchedule& schedule,
                                                     const schedule::Simulation& planned,
                                                     size_t message_bytes, const Grid& grid,
                                                     Control& control, Watchdog& watchdog);
// The model, trained.
std::unique_ptr<BenchSubject> make_model_subject(const Job& job, Control& control,
                                                 Watchdog& watchdog);

}  // namespace pipetrain
