#include "train/outputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/render.h"
#include "train/output_file.h"

namespace pipetrain {

Outputs::Outputs(const Job& job, bool leads) : job_(job) {
  if (!leads) {
    log_ = std::make_unique<Log>("", Log::Terminal::off);
    return;
  }
  const TrainConfig& config = job.config;
  struct File {
    const char* flag;
    std::string path;
  };
  std::vector<File> files;
  const auto add = [&](const char* flag, const std::string& path) {
    require_writable_file(path, flag);
    files.push_back({flag, path});
  };
  if (!config.trace.empty()) {
    add("--trace", config.trace);
  }
  if (!config.dump_gradients.empty()) {
    add("--dump-gradients", config.dump_gradients);
  }
  if (!config.export_dir.empty()) {
    require_writable_directory(config.export_dir, "--export");
    add("--export", config.export_dir + "/config.json");
    add("--export", config.export_dir + "/model.safetensors");
  }
  if (!config.run_dir.empty()) {
    if (config.schedule == "auto") {
      require_writable_file(config.run_dir + RunDirectory::plan, "--run-dir");
    }
    run_directory_ = std::make_unique<RunDirectory>(config.run_dir);
    metrics_ = std::make_unique<MetricsFile>(run_directory_->metrics_file());
    if (config.schedule == "auto") {
      OutputFile plan(run_directory_->plan_file());
      plan.write(to_csv(job.schedule));
      plan.finish();
    }
  }
  for (const File& file : files) {
    make_directory(std::filesystem::absolute(file.path).parent_path(), file.flag);
  }
  log_ = std::make_unique<Log>(run_directory_ ? run_directory_->log_file() : "");
}

void Outputs::write_metrics(const StepMetrics& metrics) {
  if (metrics_ == nullptr || failed()) {
    return;
  }
  try {
    metrics_->write(metrics);
  } catch (const Error& error) {
    failure_ = fmt::format("{}; the run ends, without the metrics from step {} on", error.what(),
                           metrics.step);
    log_->warning(failure_);
  }
}

void Outputs::require_complete() const {
  if (failed()) {
    throw Error(ExitCode::other, failure_);
  }
}

void Outputs::write_trace(const schedule::Simulation& measured) const {
  if (!job_.config.trace.empty()) {
    OutputFile file(job_.config.trace);
    file.write(render_chrome_trace(measured, job_.schedule, {.time_unit = "ms"}));
    file.finish();
  }
}

}  // namespace pipetrain
