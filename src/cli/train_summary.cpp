#include "cli/train_summary.h"

#include <fmt/format.h>

#include "pipetrain/schedule/render.h"

namespace pipetrain {
namespace {

std::string peaks_text(const TrainReport& report) {
  std::string text = "peak activations, measured of cap:\n";
  for (size_t rank = 0; rank < report.peaks.size(); ++rank) {
    const PeakActivations& peak = report.peaks[rank];
    text += fmt::format("  rank {}: {} of {} ({} of {} slots)", rank,
                        readable_bytes(size_t(peak.measured_slots) * peak.slot_bytes),
                        readable_bytes(size_t(peak.cap_slots) * peak.slot_bytes),
                        peak.measured_slots, peak.cap_slots);
    if (peak.gradient_cap_slots > 0 && peak.gradient_slot_bytes > 0) {
      text += fmt::format(
          ", pending weight gradients {} of {} ({} of {} slots)",
          readable_bytes(size_t(peak.measured_gradient_slots) * peak.gradient_slot_bytes),
          readable_bytes(size_t(peak.gradient_cap_slots) * peak.gradient_slot_bytes),
          peak.measured_gradient_slots, peak.gradient_cap_slots);
    }
    text += "\n";
  }
  return text;
}

std::string files_text(const TrainConfig& config) {
  std::string text;
  const auto add = [&text](const std::string& what, const std::string& path) {
    if (!path.empty()) {
      text += fmt::format("{:<11}{}\n", what + ":", path);
    }
  };
  add("metrics", config.run_dir.empty() ? "" : config.run_dir + "/metrics.jsonl");
  add("log", config.run_dir.empty() ? "" : config.run_dir + "/log.txt");
  add("plan",
      config.run_dir.empty() || config.schedule != "auto" ? "" : config.run_dir + "/plan.csv");
  add("trace", config.trace);
  add("gradients", config.dump_gradients);
  add("weights", config.export_dir);
  return text;
}

}  // namespace

std::string train_summary(const TrainConfig& config, const TrainReport& report, bool colour,
                          unsigned cores) {
  const StepMetrics& first = report.first;
  const StepMetrics& last = report.last;
  std::string text = fmt::format("step {} as measured, in milliseconds:\n", last.step);
  text += render_ascii(report.measured, report.schedule, {.colour = colour, .time_unit = "ms"});
  text += "\n" + peaks_text(report);
  text +=
      fmt::format("bubble:    {:.1f}% measured, {:.1f}% planned at {}\n",
                  100 * report.measured.bubble_fraction(), 100 * report.planned.bubble_fraction(),
                  report.profiled ? "the profile's times" : "equal times of F, B and W");
  const size_t ranks = report.peaks.size() * size_t(config.data_parallel);
  if (last.device == "host" && size_t(cores) < ranks) {
    text += fmt::format(
        "           {} ranks share {} cores here, so they cannot run side by side\n", ranks, cores);
  }
  text += fmt::format("loss:      {:.4f} in step {}, {:.4f} in step {}\n", first.loss, first.step,
                      last.loss, last.step);
  if (report.stopped) {
    text +=
        fmt::format("stopped:   by SIGUSR1, {} of {} steps are done\n", last.step, config.steps);
  }
  if (report.skipped > 0) {
    text +=
        fmt::format("skipped:   updates in {} of {} steps, whose loss or gradient was not finite\n",
                    report.skipped, last.step);
  }
  if (!report.validations.empty()) {
    const Validation& before = report.validations.front();
    const Validation& after = report.validations.back();
    text += fmt::format("validation: {:.4f} before step 1, {:.4f} after step {}; {} tokens\n",
                        before.result.loss, after.result.loss, after.steps, after.result.targets);
  }
  return text + files_text(config);
}

}  // namespace pipetrain
