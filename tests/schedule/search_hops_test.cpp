#include "schedule/search_hops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace pipetrain::schedule {
namespace {

// Lays out many micro-batches slot by slot.
struct Layout {
  bool slot_used_twice = false;
  int peak = 0;  // chunks held where all micro-batches before and after are there

  Layout(const Gaps& gaps, const RankBlock& block) {
    const int count = 2 * gaps.sum() / kBlockPeriod + 20;
    const int input_a = gaps.sum();
    const int input_b = gaps.forward + gaps.turn;
    const int weight_a = input_a + block.wait_a;
    const int weight_b = input_b + block.wait_b;
    std::map<int, int> computations, held;  // per slot
    for (int i = 0; i < count; ++i) {
      const int begin = i * kBlockPeriod;
      for (const int time : {0, gaps.forward, input_a, input_b, weight_a, weight_b}) {
        slot_used_twice |= ++computations[begin + time] > 1;
      }
      for (const auto& [first, last] : {std::pair(0, weight_a), {gaps.forward, weight_b}}) {
        for (int time = first; time <= last; ++time) {
          ++held[begin + time];
        }
      }
    }
    for (const auto& [slot, chunks] : held) {
      peak = std::max(peak, chunks);
    }
  }
};

TEST(SearchHops, EveryRankUsesEverySlotOnceAndFits) {
  Random random(7);
  int blocks = 0;
  for (const int ranks : {1, 2, 4, 7, 12}) {
    for (int most = 2; most <= 2 * ranks; ++most) {
      HopFinder finder(ranks, most);
      for (int i = 0; i < 10; ++i) {
        const Hops hops = finder.find(random);
        if (hops.empty()) {
          EXPECT_LT(most, 2 * ((ranks + 4) / 3)) << "no block for p=" << ranks << " M=" << most;
          continue;
        }
        ++blocks;
        EXPECT_GE(*std::min_element(hops.begin() + 1, hops.end()), 1);
        for (const Gaps& gaps : gaps_of(hops, ranks)) {
          const RankBlock block = rank_block(gaps);
          const Layout layout(gaps, block);
          EXPECT_TRUE(block.possible);
          EXPECT_FALSE(layout.slot_used_twice);
          EXPECT_EQ(layout.peak, block.peak);
          EXPECT_LE(layout.peak, most) << "p=" << ranks;
        }
      }
    }
  }
  EXPECT_GT(blocks, 200);
}

TEST(SearchHops, GapsAreSumsOfHops) {
  // Two ranks: forwards of stages 0 to 3, then inputs of stages 3 to 0.
  const Hops hops = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<Gaps> gaps = gaps_of(hops, 2);
  EXPECT_EQ(gaps[0].forward, 1 + 2 + 3);
  EXPECT_EQ(gaps[0].turn, 4);
  EXPECT_EQ(gaps[0].input, 5 + 6 + 7);
  EXPECT_EQ(gaps[1].forward, 2);
  EXPECT_EQ(gaps[1].turn, 3 + 4 + 5);
  EXPECT_EQ(gaps[1].input, 6);
}

TEST(SearchHops, TwoComputationsInOneSlotAreNoBlock) {
  EXPECT_FALSE(rank_block({6, 9, 1}).possible);
  EXPECT_TRUE(rank_block({7, 9, 1}).possible);
}

}  // namespace
}  // namespace pipetrain::schedule
