#include "schedule/search_block.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "schedule/search_hops.h"
#include "schedule/search_list.h"
#include "schedule/search_random.h"

namespace pipetrain::schedule {
namespace {

// All of a rank's letters in the block's order.
Word sequence_of(const Gaps& gaps, int microbatches) {
  const RankBlock block = rank_block(gaps);
  struct Next {
    int slot;
    Letter letter;
    int left;
  };
  const auto next = [&](int slot, Step step, std::uint8_t chunk) {
    return Next{slot, {step, chunk}, microbatches};
  };
  const int input_a = gaps.sum();
  const int input_b = gaps.forward + gaps.turn;
  std::array<Next, kBlockPeriod> letters = {
      next(0, Step::forward, 0),     next(gaps.forward, Step::forward, 1),
      next(input_b, Step::input, 1), next(input_b + block.wait_b, Step::weight, 1),
      next(input_a, Step::input, 0), next(input_a + block.wait_a, Step::weight, 0)};
  Word sequence;
  sequence.reserve(letters.size() * size_t(microbatches));
  for (size_t i = 0; i < letters.size() * size_t(microbatches); ++i) {
    const auto first =
        std::min_element(letters.begin(), letters.end(), [](const Next& x, const Next& y) {
          return x.left > 0 && (y.left == 0 || x.slot < y.slot);
        });
    sequence.push_back(first->letter);
    first->slot += kBlockPeriod;
    --first->left;
  }
  return sequence;
}

// Some forwards come long before their place in the block. The ranks before `spare_ranks` keep room
// meanwhile for one more chunk that returns from the others.
Policy to_policy(const Problem& problem, const Hops& hops, int spare_ranks) {
  const int all = problem.chunks * problem.microbatches;
  Policy policy;
  for (const Gaps& gaps : gaps_of(hops, problem.ranks)) {
    RankPolicy& rank = policy.ranks.emplace_back();
    rank.lead.assign(size_t(problem.chunks), problem.microbatches);
    rank.debt = rank.final_debt = all;
    rank.priority = {{Step::input, 1}, {Step::input, 0}, {Step::forward, 1}, {Step::forward, 0}};
    rank.sequence = sequence_of(gaps, problem.microbatches);
    rank.ahead = rank.free_end = true;
    rank.spare = int(policy.ranks.size()) <= spare_ranks ? 1 : 0;
  }
  return policy;
}

}  // namespace

Candidate search_blocks(const Problem& problem, size_t runs, std::uint64_t seed) {
  Random random(seed);
  ListScheduler scheduler(problem);
  const double never = std::numeric_limits<double>::infinity();
  Candidate best{{}, {never, never}, "building block"};
  const double limit = *std::min_element(problem.limits.begin(), problem.limits.end());
  HopFinder finder(problem.ranks, int(std::min(limit, 2.0 * problem.ranks)));
  for (size_t i = 0; i < runs && best.cost.objective > problem.least * (1 + 1e-9); ++i) {
    const Hops hops = finder.find(random);
    if (hops.empty()) {
      break;
    }
    const Cost cost = scheduler.run(to_policy(problem, hops, random.below(problem.ranks + 1)));
    // better_than() is for finite costs.
    if (cost.objective < never && (best.words.empty() || cost.better_than(best.cost))) {
      best.words = scheduler.words();
      best.cost = cost;
    }
  }
  return best;
}

}  // namespace pipetrain::schedule
