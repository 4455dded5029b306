#pragma once

#include <optional>
#include <vector>

#include "pipetrain/runtime/trace.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain {

double median(std::vector<double> values);  // of at least one; the mean of the middle two

// One repeat of a step, of all pipeline ranks.
struct StepFigures {
  double makespan = 0;  // ms, first start to last end of a computation
  double bubble = 0;    // (makespan - planned ideal) / makespan
  // The worst rank's time in ms in which it computed nothing although what its next computation
  // reads had been computed: the message was under way, or the last one had not left its slot.
  double exposed_communication = 0;
  // Median over the computations, in ms, of what lies between the moment when one could start (the
  // one before it had ended and its message had come) and its end, less the time it is made of.
  double action_overhead = 0;
  // Median over the messages that were waited for, in ms, of what lies between the end of the
  // computation and the arrival of its message, less the planned time of the link.
  std::optional<double> hop_overhead;
  double whole_step = 0;  // ms, with reductions and the optimizer
};

// `hop`: planned time of a message in ms. `synthetic`: computations are made of their planned
// times, else of what they took.
StepFigures step_figures(const schedule::LoweredSchedule& schedule,
                         const schedule::Simulation& planned, double hop,
                         const std::vector<RankTrace>& ranks, bool synthetic);

// The times of F, B or I, and W that the ranks took, and of overlapped pairs of F and B, in ms per
// rank's whole share: the mean over a step, the median over the steps; without pairs theirs is 0.
// traces: [repeat][pipeline rank].
schedule::Costs measured_costs(const schedule::Placement& placement,
                               const std::vector<std::vector<RankTrace>>& traces);

}  // namespace pipetrain
