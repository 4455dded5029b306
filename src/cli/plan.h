#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain {

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
  bool lowered = false;
  std::string format = "table";
  std::string output;

  // Completes costs.transfer; throws UsageError naming the flag.
  void check();
};

struct Plan {
  schedule::Schedule schedule;
  schedule::Simulation simulation;
  int transfers = 0;  // between ranks, per step
};

// The schedule asked for, or with "all" every one that accepts the numbers (the others are named on
// standard error with the reason). Throws DoesNotFit where a rank exceeds --activation-limit.
std::vector<Plan> make_plans(const PlanOptions& options);

std::string to_table(const std::vector<Plan>& plans, const PlanOptions& options);
std::string to_json(const std::vector<Plan>& plans, bool array);

}  // namespace pipetrain
