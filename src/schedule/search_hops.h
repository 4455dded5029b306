#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "schedule/search_random.h"

namespace pipetrain::schedule {

// Building blocks of the V placement with two chunks per rank, a and b (Qi et al. 2024,
// controllable memory): every rank runs the six computations of micro-batch k six slots after those
// of micro-batch k-1, each in a slot of its own, so that it is never idle between the first
// micro-batches and the last.
inline constexpr int kBlockPeriod = 6;

// Slots from one computation of a micro-batch to its next, all at least 1: forwards of all stages,
// then input gradients from the last stage to the first. hops[0] is not used.
using Hops = std::vector<int>;

// One rank's part of a block: slots from forward a to forward b, to input gradient b, to a.
struct Gaps {
  int forward = 0;
  int turn = 0;
  int input = 0;

  int sum() const { return forward + turn + input; }
};

std::vector<Gaps> gaps_of(const Hops& hops, int ranks);

// What follows from the gaps. A weight gradient takes the first free slot after its input gradient.
struct RankBlock {
  bool possible = false;  // no slot is needed twice
  int wait_a = 0;         // slots from an input gradient to its weight gradient
  int wait_b = 0;
  int peak = 0;  // chunks held
  // Chunks held while a forward of b runs, without those that wait for their weight gradient: what
  // the forwards are ahead of the backwards.
  int lead = 0;
};

RankBlock rank_block(const Gaps& gaps);

// Finds hops with which no rank holds more than `most` chunks.
class HopFinder {
 public:
  HopFinder(int ranks, int most);

  // At random, from the last rank, which runs as many forwards as it can before its first backward,
  // to the first. Empty where nothing was found.
  Hops find(Random& random);

 private:
  // By how much a slot more makes a hop less wanted, against a random number up to 1.
  struct Taste {
    double back = 0;  // towards rank 0: forwards of b, input gradients of a
    double out = 0;   // towards the last rank
  };

  bool fits(const Gaps& gaps) const;
  bool extend(int rank, const Gaps& gaps, Hops& hops, const Taste& taste, Random& random);

  int ranks_;
  int most_;
  std::vector<Gaps> starts_;                             // of the last rank, the largest lead first
  std::vector<std::unordered_set<std::uint64_t>> dead_;  // per rank: gaps that lead nowhere
  int steps_left_ = 0;
};

}  // namespace pipetrain::schedule
