#include "pipetrain/train/balance.h"

#include <algorithm>
#include <limits>

namespace pipetrain {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// A function of (stage, layers of this and all later stages).
class Table {
 public:
  Table(size_t stages, int layers)
      : width_(size_t(layers) + 1), values_((stages + 1) * width_, infinity) {
    at(stages, 0) = 0;
  }
  double& at(size_t stage, int layers) { return values_[stage * width_ + size_t(layers)]; }

 private:
  size_t width_;
  std::vector<double> values_;
};

// The least that any partition can do; `join(own, rest)` puts a stage's cost before the others'.
template <typename Cost, typename Join>
Table solve(int layers, size_t stages, const std::vector<int>& most, Cost cost, Join join) {
  Table least(stages, layers);
  for (size_t stage = stages; stage-- > 0;) {
    for (int total = 0; total <= layers; ++total) {
      for (int own = 0; own <= std::min(total, most[stage]); ++own) {
        double& best = least.at(stage, total);
        best = std::min(best, join(cost(stage, own), least.at(stage + 1, total - own)));
      }
    }
  }
  return least;
}

}  // namespace

StageTimes stage_times(const Profile& profile, const schedule::Placement& placement) {
  StageTimes times;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    double fixed = 0;
    double layer = 0;
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      if (placement.holds(rank, stage)) {
        const DeviceProfile& device = profile.ranks.at(size_t(rank));
        fixed = std::max(fixed, (stage == 0 ? device.embedding.sum() : 0) +
                                    (stage + 1 == placement.stages() ? device.head.sum() : 0));
        layer = std::max(layer, device.block.sum());
      }
    }
    times.fixed.push_back(fixed);
    times.layer.push_back(layer);
  }
  return times;
}

std::vector<int> balanced_layers(int layers, const StageTimes& times,
                                 const std::vector<int>& most) {
  const size_t stages = times.fixed.size();
  Table slowest = solve(
      layers, stages, most, [&](size_t stage, int own) { return times.of(stage, own); },
      [](double own, double rest) { return std::max(own, rest); });
  const double bound = slowest.at(0, layers);
  if (bound == infinity) {
    return {};
  }
  const auto square = [&](size_t stage, int own) {
    const double time = times.of(stage, own);
    return time <= bound ? time * time : infinity;
  };
  Table squares =
      solve(layers, stages, most, square, [](double own, double rest) { return own + rest; });
  std::vector<int> result;
  int left = layers;
  for (size_t stage = 0; stage < stages; ++stage) {
    constexpr double rounding = 1 + 1e-12;  // sums of the same squares in another order
    const double least = squares.at(stage, left) * rounding;
    int own = std::min(left, most[stage]);
    while (square(stage, own) + squares.at(stage + 1, left - own) > least) {
      --own;
    }
    result.push_back(own);
    left -= own;
  }
  return result;
}

std::optional<std::vector<int>> balanced_layers_that_fit(
    int layers, const StageTimes& times,
    const std::function<std::optional<int>(const std::vector<int>&)>& too_large,
    std::vector<int>* layers_tried) {
  std::vector<int> most(times.fixed.size(), layers);
  while (true) {
    std::vector<int> balanced = balanced_layers(layers, times, most);
    if (balanced.empty()) {
      return std::nullopt;
    }
    *layers_tried = balanced;
    const std::optional<int> stage = too_large(balanced);
    if (!stage) {
      return balanced;
    }
    most[size_t(*stage)] = balanced[size_t(*stage)] - 1;
    if (most[size_t(*stage)] < 0) {  // too large with no layers at all
      return std::nullopt;
    }
  }
}

}  // namespace pipetrain
