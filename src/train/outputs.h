#pragma once

#include <memory>
#include <string>

#include "pipetrain/schedule/simulate.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/log.h"
#include "pipetrain/train/metrics.h"
#include "pipetrain/train/run_directory.h"

namespace pipetrain {

// The files that the first rank writes; the others have none, and a silent log.
class Outputs {
 public:
  // Throws UsageError unless all of them can be written. Nothing is created before that is known.
  Outputs(const Job& job, bool leads);

  Log& log() { return *log_; }
  // Appends a line to metrics.jsonl. Where that fails the run is to end, but as at its last step:
  // what it has learned is exported, and require_complete() throws after that.
  void write_metrics(const StepMetrics& metrics);
  bool failed() const { return !failure_.empty(); }
  void require_complete() const;  // throws Error
  void write_trace(const schedule::Simulation& measured) const;

 private:
  const Job& job_;
  std::unique_ptr<RunDirectory> run_directory_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<Log> log_;
  std::string failure_;
};

}  // namespace pipetrain
