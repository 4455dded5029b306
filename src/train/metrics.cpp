#include "pipetrain/train/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

using nlohmann::ordered_json;

ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

std::string percent(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f}%", 100 * *value) : "n/a";
}

std::string thousands(double value) {
  return value < 10e3   ? fmt::format("{:.0f}", value)
         : value < 10e6 ? fmt::format("{:.1f}k", value / 1e3)
                        : fmt::format("{:.1f}M", value / 1e6);
}

}  // namespace

std::string to_json(const StepMetrics& metrics) {
  ordered_json line;
  line["step"] = metrics.step;
  line["loss"] = metrics.loss;  // nlohmann-json prints the shortest digits that read back the same
  line["grad_norm"] = metrics.grad_norm;
  line["learning_rate"] = metrics.learning_rate;
  line["tokens"] = metrics.tokens;
  line["step_seconds"] = metrics.step_seconds;
  line["tokens_per_second"] = metrics.tokens_per_second;
  line["mfu"] = or_null(metrics.mfu);
  line["bubble_planned"] = metrics.bubble_planned;
  line["bubble_measured"] = or_null(metrics.bubble_measured);
  line["peak_activations"] = metrics.peak_activations;
  line["activation_cap"] = metrics.activation_cap;
  if (metrics.validation_loss) {
    line["validation_loss"] = *metrics.validation_loss;
  }
  line["device"] = metrics.device;
  if (metrics.skipped) {
    line["note"] =
        fmt::format("update skipped: loss {}, gradient norm {}", metrics.loss, metrics.grad_norm);
  }
  return line.dump();
}

MetricsFile::MetricsFile(const std::string& path) : path_(path), file_(path, std::ios::app) {
  if (!file_) {
    throw UsageError(fmt::format("--run-dir: {} cannot be opened", path));
  }
}

void MetricsFile::write(const StepMetrics& metrics) {
  file_ << to_json(metrics) + "\n" << std::flush;
  if (!file_) {
    throw Error(ExitCode::other, fmt::format("cannot write {}: is the disk full?", path_));
  }
}

std::string progress_line(const StepMetrics& metrics, int64_t steps, double seconds_left) {
  const int width = int(fmt::formatted_size("{}", steps));
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  norm {:.3f}  {} tokens/s  bubble {} (planned {})  {} left{}",
      metrics.step, width, steps, metrics.loss, metrics.grad_norm,
      thousands(metrics.tokens_per_second), percent(metrics.bubble_measured),
      percent(metrics.bubble_planned), duration(seconds_left),
      metrics.skipped ? "  update skipped: not finite" : "");
}

std::string duration(double seconds) {
  const int64_t total = std::isfinite(seconds) ? std::llround(std::max(0.0, seconds)) : 0;
  const int64_t minutes = total / 60;
  const int64_t hours = minutes / 60;
  if (total < 60) {
    return fmt::format("{} s", total);
  }
  if (hours == 0) {
    return fmt::format("{} min {:02} s", minutes, total % 60);
  }
  if (hours < 24) {
    return fmt::format("{} h {:02} min", hours, minutes % 60);
  }
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

}  // namespace pipetrain
