#pragma once

#include <vector>

#include "pipetrain/schedule/schedule.h"

namespace pipetrain::schedule {

// Durations, in any one unit of time. Vectors have one entry per rank, or one entry for all. Times
// are of a rank's WHOLE share of one micro-batch: with v chunks per rank a chunk takes 1/v of them
// (dualpipe and chimera: an op is one stage and takes the full time).
struct Costs {
  std::vector<double> forward = {1};
  std::vector<double> backward_input = {1};
  std::vector<double> backward_weight = {1};
  // An overlapped F&B pair; empty: the sum of its parts.
  std::vector<double> overlapped = {};
  double latency = 0;         // of one hop
  double transfer = 0;        // time for which a hop keeps its link busy: bytes / bandwidth
  double reduce = 0;          // one REDUCE_GRAD
  double optimizer_step = 0;  // one OPTIMIZER_STEP
  double weight_memory = 1;   // what is held between I and W, in slots; may exceed 1
};

struct Interval {
  Action action;
  double start = 0;
  double end = 0;
};

// Length of the time that the intervals cover: what overlaps counts once.
double covered_time(std::vector<Interval> intervals);

struct RankResult {
  std::vector<Interval> intervals;  // F, B, I and W in list order
  double busy = 0;                  // reductions and optimizer steps of a lowered list included
  double idle = 0;                  // makespan - busy
  int peak_chunks = 0;              // chunks between F and their B or W
  double peak_activations = 0;      // in rank shares, pending W counted with weight_memory
  int weight_versions = 1;
};

// Numbers of a simulated step (SCHEDULES: time model). makespan = last end - first start over all
// ranks; span = max over ranks of (last end - first start on that rank); ideal = m(F+B+W) of the
// slowest rank.
struct Simulation {
  double makespan = 0;
  double span = 0;
  double ideal = 0;
  std::vector<RankResult> ranks;
  std::vector<Interval> transfers;  // lowered lists only

  double bubble_fraction() const { return (makespan - ideal) / makespan; }
  double bubble_fraction_span() const { return (span - ideal) / span; }
  double bubble_over_ideal() const { return (makespan - ideal) / ideal; }
};

// Every dependency counts; each rank runs its list in order; start = max(rank free, for every
// producer: its end + latency if on another rank). Throws InternalError naming rank, position and
// action when the lists deadlock.
Simulation simulate(const Schedule& schedule, const Costs& costs);

// How the transfers of one rank share its links: side by side, or one at a time in list order (a
// full serialisation, which every schedule must survive).
enum class Links { parallel, one_at_a_time };

// The same for the lowered list, with slots, gates, FIFO links and rendezvous sends: a transfer
// starts when its producer has ended, its gate has started and both slots are free; it keeps its
// link busy for `transfer` and frees the outgoing slot when the data has arrived.
Simulation simulate(const LoweredSchedule& schedule, const Costs& costs,
                    Links links = Links::parallel);

}  // namespace pipetrain::schedule
