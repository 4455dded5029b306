#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/cost_model.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/train/budget.h"

namespace pipetrain {

// The model flags of `pipetrain plan`: with any of them, memory and times are predicted.
struct PlanModel {
  std::string model;  // gpt2-124m, ...
  std::optional<int> layers;
  std::optional<int> hidden;
  std::optional<int> heads;
  std::optional<int> vocab_size;
  std::optional<int> sequence_length;
  std::optional<int> microbatch_size;
  std::vector<int> layers_per_stage;
  std::string precision = "bf16";
  SlotPolicy slots;
  std::optional<double> memory_limit;  // GiB; default: the device's
  std::string device = "h100";
  std::string link = "nvlink";

  bool given() const;
  bool complete() const;  // says what the model is
  // stages are left to the placement.
  BudgetRequest request() const;
};

// The flags of `pipetrain plan`.
struct PlanOptions {
  std::string schedule;
  int ranks = 4;
  int microbatches = 8;
  int chunks = 0;
  int group = 0;
  schedule::Costs costs;
  double bytes = 0;
  double bandwidth = 0;
  std::vector<double> activation_limit;
  std::string objective = "makespan";
  bool lowered = false;
  std::string format = "table";
  std::string output;
  std::string config_file;  // that flags were read from, if any
  PlanModel model;
  std::vector<std::string> given;  // flags on the command line or in a file: --latency, ...

  bool has(const std::string& flag) const;
  // Takes ranks and micro-batches from csv:FILE. Throws UsageError where the flags say otherwise.
  void adopt_file();
  // Throws UsageError naming the flag.
  void check() const;

 private:
  // Refuses flags that say nothing beside the others.
  void check_use_of_flags() const;
};

struct Plan {
  schedule::Schedule schedule;
  schedule::Simulation simulation;
  int transfers = 0;            // between ranks, per step, both directions
  int wrap_around = 0;          // of these, between the last and the first rank
  std::vector<Budget> budgets;  // per rank; with model flags
  double message_bytes = 0;
  double hop_ms = 0;
  double weight_memory = 1;  // as in Costs
};

// The schedule of a name, auto or csv:FILE for these numbers. Throws UsageError naming the flag.
schedule::Schedule requested_schedule(const std::string& name, const PlanOptions& options);

// The schedule asked for, or with "all" every one that accepts the numbers (the others are named on
// standard error, a line per reason). Throws DoesNotFit where a rank exceeds --activation-limit or
// its memory, with "all" where nothing is left.
std::vector<Plan> make_plans(const PlanOptions& options);

// The plan to choose: the shortest step; of those within a hundredth of it the least memory.
// Schedules that change the weights asynchronously are not compared. nullptr: there is none.
const Plan* best_plan(const std::vector<Plan>& plans);

// With --group and --chunks left open: how long a step of `interleaved` takes with 1, 2, ... chunks
// over every kind of link, as a table for people.
std::string chunks_table(const PlanOptions& options);

}  // namespace pipetrain
