// A profile and a plan as lines of the log.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "pipetrain/train/balance.h"
#include "pipetrain/train/planner.h"

namespace pipetrain {
namespace {

std::string to_string(const PassTimes& times) {
  return fmt::format("F {:.3g} B {:.3g} I {:.3g} W {:.3g}", times.forward, times.backward,
                     times.backward_input, times.backward_weight);
}

// "0.12" or, where they differ, "0.12, 0.1, 0.13".
std::string listed(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) {
    texts.push_back(fmt::format("{:.3g}", value));
  }
  const bool alike = std::all_of(texts.begin(), texts.end(),
                                 [&](const std::string& text) { return text == texts.front(); });
  return alike ? texts.front() : fmt::format("{}", fmt::join(texts, ", "));
}

// "3,4,4,1"
std::string layers_text(const std::vector<StageLayers>& stages) {
  std::vector<int> layers;
  for (const StageLayers& stage : stages) {
    layers.push_back(stage.layers);
  }
  return fmt::format("{}", fmt::join(layers, ","));
}

}  // namespace

std::vector<std::string> describe(const Profile& profile) {
  std::vector<std::string> lines;
  for (size_t rank = 0; rank < profile.ranks.size(); ++rank) {
    const DeviceProfile& device = profile.ranks[rank];
    const std::string line =
        fmt::format("ms per micro-batch: a block {}; the embedding {}; the head {}",
                    to_string(device.block), to_string(device.embedding), to_string(device.head));
    if (rank == 0 || !lines.back().ends_with(line)) {
      lines.push_back(fmt::format("profile from rank {} on: {}", rank, line));
    }
  }
  lines.push_back(fmt::format("profile of the links: {:.3g} ms for a message",
                              profile.link.latency + profile.link.transfer));
  return lines;
}

std::vector<std::string> describe(const AutoPlan& plan) {
  const schedule::Placement& placement = plan.schedule.placement;
  const bool loop = placement.kind() == schedule::Placement::Kind::loop;
  return {
      fmt::format("auto: ms per rank and micro-batch: F {}; I {}; W {}; a hop {:.3g}",
                  listed(plan.costs.forward), listed(plan.costs.backward_input),
                  listed(plan.costs.backward_weight), plan.costs.latency + plan.costs.transfer),
      fmt::format("auto: activation limit {} rank shares, weight-memory {:.3g}",
                  listed(plan.activation_limit), plan.costs.weight_memory),
      fmt::format(
          "auto: chosen {} placement with --layers-per-stage {}, by {}; a step of {:.4g} ms, "
          "bubble {:.1f}%",
          loop ? "loop" : "V", layers_text(plan.stages), plan.origin, plan.simulation.makespan,
          100 * plan.simulation.bubble_fraction()),
  };
}

std::string describe(const std::vector<StageLayers>& stages, const Profile& profile,
                     const schedule::Placement& placement) {
  const StageTimes times = stage_times(profile, placement);
  std::vector<double> of_stages;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    of_stages.push_back(times.of(stage, stages[stage].layers));
  }
  return fmt::format("balance: --layers-per-stage {}; ms per stage and micro-batch: {}",
                     layers_text(stages), listed(of_stages));
}

}  // namespace pipetrain
