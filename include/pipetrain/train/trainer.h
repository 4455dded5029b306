#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/evaluation.h"
#include "pipetrain/train/metrics.h"
#include "pipetrain/train/train_config.h"

namespace pipetrain {

// Activation memory of one pipeline rank.
struct PeakActivations {
  int measured_slots = 0;  // slots that were written, seen in the memory itself
  int cap_slots = 0;       // the schedule's peak: the size of the pool
  size_t slot_bytes = 0;
  int measured_gradient_slots = 0;
  int gradient_cap_slots = 0;
  size_t gradient_slot_bytes = 0;
};

struct Validation {
  int64_t steps = 0;  // after so many
  EvaluationResult result;
};

// What a run has done; the same on all ranks but for budget.
struct TrainReport {
  StepMetrics first;
  StepMetrics last;
  int64_t skipped = 0;                 // steps whose loss or gradient was not finite
  std::vector<PeakActivations> peaks;  // per pipeline rank
  Budget budget;                       // of this rank
  schedule::Schedule schedule;
  schedule::Simulation planned;   // at the profile's times, else F = B = W = 1 per share
  schedule::Simulation measured;  // the last step, in milliseconds; on rank 0
  bool profiled = false;          // planned with a profile
  std::vector<Validation> validations;
  bool stopped = false;  // by SIGUSR1, before the last step
};

// Is told of every step, in order.
using StepObserver = std::function<void(const StepMetrics&)>;

// Trains. Collective over the job; every rank needs its own device when ranks are threads. Wrong
// input is an Error on all ranks before anything is allocated. A rank that makes no progress for
// `config.timeout` ends the process with exit code 4.
TrainReport train(const TrainConfig& config, Control& control,
                  const StepObserver& on_step = nullptr);

}  // namespace pipetrain
