#include "schedule/durations.h"

#include <fmt/format.h>

#include <cmath>

#include "pipetrain/error.h"

namespace pipetrain::schedule {

namespace {

void require_time(double value, const char* flag) {
  if (!(value >= 0) || !std::isfinite(value)) {
    throw UsageError(
        fmt::format("{} is {}; it must be a finite number of at least 0", flag, value));
  }
}

// One value per rank.
std::vector<double> per_rank(const std::vector<double>& values, int ranks, const char* flag) {
  if (values.size() != 1 && values.size() != size_t(ranks)) {
    throw UsageError(
        fmt::format("{} has {} values; it must have 1, or one for each of the {} --ranks", flag,
                    values.size(), ranks));
  }
  for (const double value : values) {
    require_time(value, flag);
  }
  return values.size() == 1 ? std::vector<double>(ranks, values[0]) : values;
}

}  // namespace

Durations::Durations(const Costs& costs, const Placement& placement) {
  const int ranks = placement.ranks();
  const double chunks = placement.chunks();
  const auto forward = per_rank(costs.forward, ranks, "--forward");
  const auto input = per_rank(costs.backward_input, ranks, "--backward-input");
  const auto weight = per_rank(costs.backward_weight, ranks, "--backward-weight");
  require_time(costs.latency, "--latency");
  require_time(costs.transfer, "--bytes / --bandwidth");
  require_time(costs.reduce, "the time of a gradient reduction");
  require_time(costs.optimizer_step, "the time of an optimizer step");
  require_time(costs.weight_memory, "--weight-memory");
  if (!costs.overlapped.empty()) {
    overlapped_ = per_rank(costs.overlapped, ranks, "--overlapped");
  }
  for (double& time : overlapped_) {
    time /= chunks;
  }
  times_.assign(ranks, std::vector<double>(kinds, 0));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto set = [&](Kind kind, double time) { times_[rank][size_t(kind)] = time; };
    set(Kind::forward, forward[rank] / chunks);
    set(Kind::backward, (input[rank] + weight[rank]) / chunks);
    set(Kind::backward_input, input[rank] / chunks);
    set(Kind::backward_weight, weight[rank] / chunks);
    set(Kind::reduce_gradients, costs.reduce);
    set(Kind::optimizer_step, costs.optimizer_step);
  }
}

double Durations::of(int rank, const Action* first, int entries) const {
  if (entries == 1) {
    return of(rank, first->kind);
  }
  const bool whole = first[0].kind == Kind::backward || first[1].kind == Kind::backward;
  if (whole && !overlapped_.empty()) {
    return overlapped_[rank];
  }
  return of(rank, first[0].kind) + of(rank, first[1].kind);
}

}  // namespace pipetrain::schedule
