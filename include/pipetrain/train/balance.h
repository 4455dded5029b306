#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "pipetrain/schedule/placement.h"
#include "pipetrain/train/profile.h"

namespace pipetrain {

// F + I + W of every stage for one micro-batch, in milliseconds: stage s with n layers takes
// fixed[s] + n * layer[s]. The embedding and the head are fixed.
struct StageTimes {
  std::vector<double> fixed;
  std::vector<double> layer;

  double of(size_t stage, int layers) const { return fixed[stage] + layers * layer[stage]; }
};
// Of a stage that several ranks hold: that of the slowest.
StageTimes stage_times(const Profile& profile, const schedule::Placement& placement);

// How many layers each stage gets, in order: such that the slowest stage is as fast as it can be;
// of all such partitions the one with the least sum of the squared times (the most even one), and
// of these the one that gives earlier stages more. Stage s gets at most most[s]; a stage may get
// none. Empty: there are more layers than that.
std::vector<int> balanced_layers(int layers, const StageTimes& times, const std::vector<int>& most);

// The same where ranks hold limited memory: `too_large` says for layers per stage the first stage
// that has to give up layers, if there is one. Stages give them up one by one; with one stage per
// rank the result is the best of all that fit, with several it need not be. Empty: none fits;
// `layers_tried` is then the last partition that was tried.
std::optional<std::vector<int>> balanced_layers_that_fit(
    int layers, const StageTimes& times,
    const std::function<std::optional<int>(const std::vector<int>&)>& too_large,
    std::vector<int>* layers_tried);

}  // namespace pipetrain
