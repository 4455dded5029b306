#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace pipetrain {

// One line of metrics.jsonl. An empty optional is written as null: not known.
struct StepMetrics {
  int64_t step = 0;  // 1 is the first
  double loss = 0;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  // of this step, over all replicas
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu;  // 0 to 1
  double bubble_planned = 0;
  std::optional<double> bubble_measured;
  std::vector<int> peak_activations;  // slots per pipeline rank
  std::vector<int> activation_cap;
  std::optional<double> validation_loss;  // where the step was followed by an evaluation
  std::string device;                     // cuda or host
  bool skipped = false;                   // loss or gradient were not finite: no weight was changed
                                          // (pipedream: by those updates)
};

// The line, without its end. Numbers are printed so that reading them back gives the same bits.
// JSON has no infinity and no NaN: they are null, and a field `note` says what they were.
std::string to_json(const StepMetrics& metrics);

// Appends lines to a file, each at once, so that a killed run keeps all its steps.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);  // throws UsageError naming --run-dir
  void write(const StepMetrics& metrics);         // throws Error when the disk is full

 private:
  std::string path_;
  std::ofstream file_;
};

// A line for people: step, loss, tokens per second, bubble, time left.
std::string progress_line(const StepMetrics& metrics, int64_t steps, double seconds_left);
// 4 s, 3 min 20 s, 2 h 05 min, 3 d 04 h.
std::string duration(double seconds);

}  // namespace pipetrain
