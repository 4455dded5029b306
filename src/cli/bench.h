#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cli/plan.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/train/train_config.h"

namespace pipetrain {

// The flags of `pipetrain bench`.
struct BenchOptions {
  bool synthetic = false;
  TrainConfig train;  // schedule and micro-batches; without --synthetic the model too
  int repeat = 5;
  std::string format = "table";

  // of --synthetic; times in milliseconds
  schedule::Costs costs{.forward = {50}, .backward_input = {50}, .backward_weight = {50}};
  size_t bytes = 4096;
  double bandwidth = 0;  // bytes per millisecond; 0: unlimited

  // Throws UsageError naming the flag.
  void check(int ranks) const;
  // The same schedule and times for `pipetrain plan`.
  PlanOptions plan(int ranks) const;
  // What the lowered schedule is simulated with.
  schedule::Costs link_costs() const;
};

// One schedule as it was planned and as it ran: medians over the repeats.
struct BenchResult {
  std::string schedule;
  int ranks = 1;  // of the pipeline
  int chunks = 1;
  int microbatches = 1;
  double makespan_planned = 0;  // ms
  double makespan_measured = 0;
  double bubble_planned = 0;
  double bubble_measured = 0;
  std::vector<int> peak_activations;  // slots written, per pipeline rank
  std::vector<int> activation_cap;    // slots of the pool
  double action_overhead_us = 0;
  std::optional<double> hop_overhead_us;  // where a message was waited for
  double exposed_communication_ms = 0;
  std::string device;  // cuda or host
  std::optional<double> tokens_per_second;
};

// Runs what the options ask for on the ranks of `control`: one result per schedule, on rank 0.
// Schedules of "all" that refuse the numbers are named on standard error.
std::vector<BenchResult> run_bench(const BenchOptions& options, Control& control);

}  // namespace pipetrain
