#include "cli/bench_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace pipetrain {
namespace {

std::string row(const BenchResult& result) {
  const auto worst = std::max_element(result.activation_cap.begin(), result.activation_cap.end());
  const size_t rank = size_t(worst - result.activation_cap.begin());
  std::string text = fmt::format(
      "{:<14}{:>5}{:>7}{:>8} {:>10.2f} {:>10.2f} {:>7.2f}% {:>7.1f}% {:>7.1f}% {:>9} {:>9.0f}",
      result.schedule, result.ranks, result.chunks, result.microbatches, result.makespan_planned,
      result.makespan_measured, 100 * (result.makespan_measured / result.makespan_planned - 1),
      100 * result.bubble_planned, 100 * result.bubble_measured,
      fmt::format("{} of {}", result.peak_activations[rank], *worst), result.action_overhead_us);
  text += result.hop_overhead_us ? fmt::format("{:>8.0f}", *result.hop_overhead_us)
                                 : fmt::format("{:>8}", "-");
  text += fmt::format("{:>10.2f}", result.exposed_communication_ms);
  if (result.tokens_per_second) {
    text += fmt::format("{:>11.0f}", *result.tokens_per_second);
  }
  return text + "\n";
}

template <typename T>
nlohmann::ordered_json optional_json(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string to_table(const std::vector<BenchResult>& results, const BenchOptions& options,
                     unsigned cores) {
  const BenchResult& first = results.front();
  std::string text = fmt::format(
      "{:<14}{:>5}{:>7}{:>8}{:>11}{:>11}{:>9}{:>9}{:>9}{:>10}{:>10}{:>8}{:>10}{}\n", "schedule",
      "ranks", "chunks", "micro-b", "plan ms", "measured", "over", "bubble", "measured", "slots",
      "action us", "hop us", "exposed", first.tokens_per_second ? "   tokens/s" : "");
  for (const BenchResult& result : results) {
    text += row(result);
  }
  text += fmt::format(
      "medians of {} steps; slots: activations that were written, of the pool, on the rank with "
      "most\n"
      "action us: from when a computation could start to its end, less its own time (median)\n"
      "hop us: from the end of a computation to its message's arrival, less the link's time "
      "(median)\n"
      "exposed: ms in which the worst rank waited only for messages, not for their computation\n",
      options.repeat);
  if (options.synthetic) {
    text += "stages: synthetic, each action takes the given time\n";
  } else {
    text += "stages: the model; planned with the times that F, B or I, W and pairs took here\n";
  }
  text += fmt::format("device: {}", first.device);
  if (first.device == "host") {
    text += fmt::format(" (emulated; {} ranks on {} cores)",
                        first.ranks * options.train.data_parallel, cores);
  }
  return text + "\n";
}

std::string to_json(const std::vector<BenchResult>& results, const BenchOptions& options) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const BenchResult& result : results) {
    all.push_back({{"schedule", result.schedule},
                   {"ranks", result.ranks},
                   {"chunks", result.chunks},
                   {"microbatches", result.microbatches},
                   {"makespan_planned", result.makespan_planned},
                   {"makespan_measured", result.makespan_measured},
                   {"bubble_planned", result.bubble_planned},
                   {"bubble_measured", result.bubble_measured},
                   {"peak_activations", result.peak_activations},
                   {"activation_cap", result.activation_cap},
                   {"action_overhead_us", result.action_overhead_us},
                   {"hop_overhead_us", optional_json(result.hop_overhead_us)},
                   {"exposed_communication_ms", result.exposed_communication_ms},
                   {"device", result.device},
                   {"tokens_per_second", optional_json(result.tokens_per_second)}});
  }
  return (options.train.schedule == "all" ? all : all.front()).dump(2) + "\n";
}

}  // namespace pipetrain
