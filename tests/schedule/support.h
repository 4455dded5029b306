#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain::schedule {

// Times of one rank's whole share.
inline Costs times(double forward, double backward_input, double backward_weight,
                   double latency = 0) {
  Costs costs;
  costs.forward = {forward};
  costs.backward_input = {backward_input};
  costs.backward_weight = {backward_weight};
  costs.latency = latency;
  return costs;
}

// F = B = W = 1 for each computation of a schedule with `chunks` chunks per rank.
inline Costs unit_chunks(int chunks) {
  return times(chunks, chunks, chunks);
}

inline Request request(const std::string& name, int ranks, int microbatches, int chunks = 0,
                       int group = 0) {
  Request result;
  result.name = name;
  result.ranks = ranks;
  result.microbatches = microbatches;
  result.chunks = chunks;
  result.group = group;
  return result;
}

inline double bubble(const Simulation& simulation) {
  return simulation.makespan - simulation.ideal;
}

inline double span_bubble(const Simulation& simulation) {
  return simulation.span - simulation.ideal;
}

// Best known span bubble of the V placement, in chunk times, for m >= 2p, F = B = W = 1 per chunk
// and no latency where a rank may hold so many chunks, at least 2 floor((p + 4) / 3).
inline double v_frontier(int ranks, int chunks_held) {
  return chunks_held == 2 * ranks       ? 0
         : chunks_held == 2 * ranks - 1 ? 3
                                        : 6 * ranks - 1 - 3 * chunks_held;
}

inline Simulation run(const Request& asked, const Costs& costs) {
  return simulate(generate(asked), costs);
}

inline std::vector<int> peak_chunks(const Simulation& simulation) {
  std::vector<int> peaks;
  for (const RankResult& rank : simulation.ranks) {
    peaks.push_back(rank.peak_chunks);
  }
  return peaks;
}

inline int worst_peak(const Simulation& simulation) {
  const std::vector<int> peaks = peak_chunks(simulation);
  return *std::max_element(peaks.begin(), peaks.end());
}

inline double most_idle(const Simulation& simulation) {
  double most = 0;
  for (const RankResult& rank : simulation.ranks) {
    most = std::max(most, rank.idle);
  }
  return most;
}

}  // namespace pipetrain::schedule
