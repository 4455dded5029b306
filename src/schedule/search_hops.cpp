#include "schedule/search_hops.h"

#include <algorithm>

namespace pipetrain::schedule {
namespace {

constexpr int kPeriod = kBlockPeriod;

// The last micro-batch, counted from this one, whose computation has begun by `slot` when this
// one's begins at `time`, which is not earlier.
int begun(int slot, int time) {
  return -((time - slot + kPeriod - 1) / kPeriod);
}

RankBlock compute(const Gaps& gaps) {
  RankBlock best;
  const int forward[2] = {0, gaps.forward};
  const int input[2] = {gaps.sum(), gaps.forward + gaps.turn};
  unsigned used = 0;
  for (const int time : {forward[0], forward[1], input[0], input[1]}) {
    const unsigned bit = 1u << (time % kPeriod);
    if (used & bit) {
      return best;
    }
    used |= bit;
  }
  for (const int first : {0, 1}) {  // the chunk whose weight gradient chooses first
    int weight[2] = {input[0], input[1]};
    unsigned taken = used;
    for (const int chunk : {first, 1 - first}) {
      do {
        ++weight[chunk];
      } while (taken >> (weight[chunk] % kPeriod) & 1u);
      taken |= 1u << (weight[chunk] % kPeriod);
    }
    RankBlock block{true, weight[0] - input[0], weight[1] - input[1], 0, 0};
    for (int slot = -kPeriod; slot < 0; ++slot) {
      int held = 0;
      int waiting = 0;
      for (const int chunk : {0, 1}) {
        held += begun(slot, forward[chunk]) - begun(slot, weight[chunk] + 1);
        waiting += begun(slot, input[chunk]) - begun(slot, weight[chunk]);
      }
      block.peak = std::max(block.peak, held);
      if ((forward[1] - slot) % kPeriod == 0) {
        block.lead = held - waiting;
      }
    }
    if (!best.possible || block.peak < best.peak) {
      best = block;
    }
  }
  return best;
}

}  // namespace

std::vector<Gaps> gaps_of(const Hops& hops, int ranks) {
  const size_t p = size_t(ranks);
  std::vector<Gaps> gaps(p);
  int forward = hops[p];
  int input = hops[3 * p];
  for (size_t r = p - 1;; --r) {
    gaps[r].forward = forward;
    gaps[r].input = input;
    if (r == 0) {
      break;
    }
    forward += hops[r] + hops[2 * p - r];
    input += hops[2 * p + r] + hops[4 * p - r];
  }
  int turn = hops[2 * p];
  for (size_t r = 0; r < p; ++r) {
    turn += r == 0 ? 0 : hops[2 * p - r] + hops[2 * p + r];
    gaps[r].turn = turn;
  }
  return gaps;
}

// What is held grows evenly with every gap that is a period longer.
RankBlock rank_block(const Gaps& gaps) {
  static const std::vector<RankBlock> table = [] {
    std::vector<RankBlock> blocks;
    for (int i = 0; i < kPeriod * kPeriod * kPeriod; ++i) {
      blocks.push_back(compute({i / (kPeriod * kPeriod), i / kPeriod % kPeriod, i % kPeriod}));
    }
    return blocks;
  }();
  RankBlock block = table[size_t(
      (gaps.forward % kPeriod * kPeriod + gaps.turn % kPeriod) * kPeriod + gaps.input % kPeriod)];
  const int more = gaps.forward / kPeriod + 2 * (gaps.turn / kPeriod) + gaps.input / kPeriod;
  block.peak += more;
  block.lead += more;
  return block;
}

HopFinder::HopFinder(int ranks, int most) : ranks_(ranks), most_(most), dead_(size_t(ranks)) {
  for (int forward = 1; forward < kPeriod; ++forward) {
    for (int input = 1; input < kPeriod; ++input) {
      for (int turn = 2 * ranks - 1; turn <= 3 * most; ++turn) {
        if (fits({forward, turn, input})) {
          starts_.push_back({forward, turn, input});
        }
      }
    }
  }
  std::stable_sort(starts_.begin(), starts_.end(), [](const Gaps& x, const Gaps& y) {
    return rank_block(x).lead > rank_block(y).lead;
  });
}

bool HopFinder::fits(const Gaps& gaps) const {
  const RankBlock block = rank_block(gaps);
  return block.possible && block.peak <= most_;
}

Hops HopFinder::find(Random& random) {
  constexpr int kTries = 20;
  constexpr int kSteps = 2000;
  Hops hops(size_t(4 * ranks_), 1);
  for (int i = 0; i < kTries && !starts_.empty();) {
    const int lead = rank_block(starts_.front()).lead;
    const auto end = std::find_if(starts_.begin(), starts_.end(),
                                  [&](const Gaps& gaps) { return rank_block(gaps).lead < lead; });
    const auto start = starts_.begin() + random.below(int(end - starts_.begin()));
    const Taste taste{random.chance(0.2) ? 0 : random.between(0, 1),
                      random.chance(0.3) ? 0 : random.between(0, 0.7)};
    steps_left_ = kSteps;
    hops[size_t(ranks_)] = start->forward;
    hops[size_t(3 * ranks_)] = start->input;
    if (extend(ranks_ - 1, *start, hops, taste, random)) {
      return hops;
    }
    if (steps_left_ > 0) {
      starts_.erase(start);  // leads nowhere
    } else {
      ++i;
    }
  }
  return {};
}

// Goes on from `rank`, which has these gaps, to the ranks before it.
bool HopFinder::extend(int rank, const Gaps& gaps, Hops& hops, const Taste& taste, Random& random) {
  const size_t p = size_t(ranks_);
  if (rank == 0) {
    hops[2 * p] = gaps.turn;
    return true;
  }
  const std::uint64_t key = (std::uint64_t(gaps.forward) << 40) | (std::uint64_t(gaps.turn) << 20) |
                            std::uint64_t(gaps.input);
  if (dead_[size_t(rank)].contains(key) || steps_left_-- <= 0) {
    return false;
  }
  constexpr int kLongest = 6;
  constexpr int kLongestTurn = 2;  // of rank 0
  struct Step {
    double unwanted;
    int forward_out, forward_back, input_out, input_back;
    Gaps gaps;  // of the rank before
  };
  std::vector<Step> steps;
  const int left = rank - 1;
  for (int forward_back = 1; forward_back <= kLongest; ++forward_back) {
    for (int input_out = 1; input_out <= kLongest; ++input_out) {
      const int turn = gaps.turn - forward_back - input_out;
      if (turn < 2 * left + 1 || turn > 2 * kLongest * left + kLongestTurn) {
        continue;
      }
      for (int forward_out = 1; forward_out <= kLongest; ++forward_out) {
        for (int input_back = 1; input_back <= kLongest; ++input_back) {
          const Gaps next{gaps.forward + forward_out + forward_back, turn,
                          gaps.input + input_out + input_back};
          if (fits(next)) {
            const double unwanted = random.uniform() + taste.back * (forward_back + input_back) +
                                    taste.out * (forward_out + input_out);
            steps.push_back({unwanted, forward_out, forward_back, input_out, input_back, next});
          }
        }
      }
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const Step& x, const Step& y) { return x.unwanted < y.unwanted; });
  const size_t r = size_t(rank);
  for (const Step& step : steps) {
    if (extend(rank - 1, step.gaps, hops, taste, random)) {
      hops[r] = step.forward_out;
      hops[2 * p - r] = step.forward_back;
      hops[2 * p + r] = step.input_out;
      hops[4 * p - r] = step.input_back;
      return true;
    }
  }
  if (steps_left_ > 0) {
    dead_[r].insert(key);
  }
  return false;
}

}  // namespace pipetrain::schedule
