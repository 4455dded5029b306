#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain::schedule {

// Where a block stands in its row: overlapped pairs share the row's height.
enum class Lane { whole, first_of_pair, second_of_pair };

// A block of a picture. Times count from the begin of the step.
struct Block {
  Action action;
  double start = 0;
  double end = 0;
  int chunk = 0;  // of the rank, from 0; mirrored placements: the direction
  Lane lane = Lane::whole;
};

struct MemoryStep {
  double time = 0;
  double held = 0;  // in rank shares, from `time` on
};

// One rank as all pictures show it.
struct RankTimeline {
  std::vector<Block> blocks;  // ascending in time
  std::vector<MemoryStep> memory;
  double busy = 0;
  double peak = 0;            // of memory
  double steady_begin = 0;    // start of the first backward: warm-up ends
  double cooldown_begin = 0;  // end of the last forward
};

struct Timeline {
  std::vector<RankTimeline> ranks;
  double first_start = 0;       // in the simulation's time
  double length = 0;            // last end - first start over all ranks
  double bubble = 0;            // idle part of the busiest rank's row, 0..1
  int chunks = 1;               // how many values Block::chunk has
  bool whole_backward = false;  // which kinds occur
  bool split_backward = false;
};

Timeline make_timeline(const Simulation& simulation, const Schedule& schedule,
                       double weight_memory);

// "4 ranks, 8 micro-batches, 2 chunks per rank (v)"
std::string picture_subtitle(const Schedule& schedule);

// The shortest step of 1, 2 or 5 times a power of ten that `length` holds at most `count` times.
double axis_step(double length, int count);

// Up to four digits, without trailing zeros.
std::string short_number(double value);

}  // namespace pipetrain::schedule
