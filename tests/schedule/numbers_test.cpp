// Figures of papers and worked examples.

#include <gtest/gtest.h>

#include <map>

#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

constexpr double exact = 1e-9;

TEST(Numbers, GpipeAnd1f1bWithABackwardOfTwoForwards) {
  const Simulation gpipe = run(request("gpipe", 4, 8), {});
  const Simulation one = run(request("1f1b", 4, 8), {});
  EXPECT_NEAR(gpipe.makespan, 33, exact);
  EXPECT_NEAR(one.makespan, 33, exact);
  EXPECT_NEAR(one.ideal, 24, exact);
  EXPECT_NEAR(one.bubble_fraction(), 0.273, 5e-4);
  EXPECT_EQ(gpipe.ranks[0].peak_chunks, 8);
  EXPECT_EQ(one.ranks[0].peak_chunks, 4);

  const Simulation wide_gpipe = run(request("gpipe", 8, 32), {});
  const Simulation wide = run(request("1f1b", 8, 32), {});
  EXPECT_NEAR(wide.bubble_fraction(), 0.179, 5e-4);
  EXPECT_EQ(wide_gpipe.ranks[0].peak_chunks, 32);
  EXPECT_EQ(wide.ranks[0].peak_chunks, 8);
}

TEST(Numbers, FewerMicrobatchesThanRanks) {
  EXPECT_NEAR(run(request("1f1b", 4, 1), {}).makespan, 12, exact);
  EXPECT_NEAR(run(request("1f1b", 4, 2), {}).makespan, 15, exact);
  EXPECT_NEAR(run(request("1f1b", 4, 3), {}).makespan, 18, exact);
}

TEST(Numbers, InterleavedWithGroups) {
  struct Case {
    int p, v, n, m;
    double makespan, ideal;
    std::vector<int> peaks;
  };
  const std::vector<Case> cases = {
      {4, 2, 4, 8, 57, 48, {11, 9, 7, 5}},
      {4, 2, 5, 10, 69, 60, {12, 10, 8, 6}},
      {2, 2, 3, 5, 33, 30, {6, 4}},
      {8, 2, 8, 16, 117, 96, {23, 21, 19, 17, 15, 13, 11, 9}},
  };
  for (const Case& c : cases) {
    // Chunk times 1 and 2.
    const Simulation s = run(request("interleaved", c.p, c.m, c.v, c.n), times(c.v, c.v, c.v));
    EXPECT_NEAR(s.makespan, c.makespan, exact);
    EXPECT_NEAR(s.ideal, c.ideal, exact);
    EXPECT_EQ(peak_chunks(s), c.peaks);
  }
}

TEST(Numbers, EqualTimesOnFourRanks) {
  const auto makespan = [](const char* name, int v) {
    return run(request(name, 4, 8, v), {}).makespan;
  };
  EXPECT_NEAR(makespan("looped-bfs", 2), 28.5, exact);
  EXPECT_NEAR(makespan("interleaved", 2), 28.5, exact);
  EXPECT_NEAR(makespan("looped-bfs", 4), 26.25, exact);
  EXPECT_NEAR(makespan("interleaved", 4), 26.25, exact);
  EXPECT_NEAR(makespan("zb-h1", 0), 27, exact);
  EXPECT_NEAR(makespan("zb-v", 0), 25.5, exact);
}

// A pair that overlaps delivers both results at its end; run one after the other, the forward's is
// there earlier.
TEST(Numbers, DualpipeVWithItsPairsTakenApart) {
  Schedule schedule = generate(request("dualpipe-v", 4, 8));
  EXPECT_NEAR(simulate(schedule, {}).makespan, 27, exact);
  for (std::vector<Action>& list : schedule.ranks) {
    for (Action& action : list) {
      action.overlaps_next = false;
    }
  }
  EXPECT_NEAR(simulate(schedule, {}).makespan, 25.5, exact);
}

TEST(Numbers, PeaksOnFourRanks) {
  const auto peaks = [](const char* name, int v = 0) {
    return peak_chunks(run(request(name, 4, 8, v), {}));
  };
  using List = std::vector<int>;
  EXPECT_EQ(peaks("gpipe"), (List{8, 8, 8, 8}));
  EXPECT_EQ(peaks("1f1b"), (List{4, 3, 2, 1}));
  EXPECT_EQ(peaks("looped-bfs", 2), (List{16, 16, 16, 16}));
  EXPECT_EQ(peaks("interleaved", 2), (List{11, 9, 7, 5}));
  EXPECT_EQ(worst_peak(run(request("zb-v", 4, 8), {})), 8);
  EXPECT_EQ(peaks("dualpipe-v"), (List{9, 9, 9, 9}));
}

// Forwards before the first backward.
std::vector<int> leading_forwards(const Schedule& schedule) {
  std::vector<int> result;
  for (const std::vector<Action>& list : schedule.ranks) {
    result.push_back(0);
    while (list[result.back()].kind == Kind::forward) {
      ++result.back();
    }
  }
  return result;
}

TEST(Numbers, LeadingForwards) {
  EXPECT_EQ(leading_forwards(generate(request("interleaved", 4, 8, 2))),
            (std::vector<int>{11, 9, 7, 5}));
  for (int p = 1; p <= 8; ++p) {
    std::vector<int> expected;
    for (int r = 0; r < p; ++r) {
      expected.push_back(2 * (p - r) - 1);
    }
    EXPECT_EQ(leading_forwards(generate(request("zb-h2", p, 2 * p))), expected);
  }
}

// Qi et al. 2023, tables 5 and 9: milliseconds, bubble rates over the span.
TEST(Numbers, ZeroBubblePaper) {
  struct Row {
    int p, m;
    double f, b, w, c;
    double one, interleaved, h1, h2, v;
  };
  const std::vector<Row> rows = {
      {8, 24, 18.522, 18.086, 9.337, .601, .2431, .1090, .1585, .1083, .0728},
      {8, 64, 18.546, 18.097, 9.321, .762, .1240, .0461, .0674, .0444, .0307},
      {16, 48, 11.347, 11.248, 8.132, .377, .2552, .1136, .1397, .0672, .0518},
      {16, 128, 11.325, 11.308, 8.109, .378, .1251, .0459, .0576, .0266, .0203},
  };
  for (const Row& row : rows) {
    const Costs costs = times(row.f, row.b, row.w, row.c);
    const auto rate = [&](const char* name, int v = 0) {
      return run(request(name, row.p, row.m, v), costs).bubble_fraction_span();
    };
    EXPECT_NEAR(rate("1f1b"), row.one, 5e-5);
    EXPECT_NEAR(rate("interleaved", 3), row.interleaved, 5e-5);
    EXPECT_NEAR(rate("zb-h1"), row.h1, 5e-5);
    EXPECT_NEAR(rate("zb-h2"), row.h2, 5e-5);
    EXPECT_NEAR(rate("zb-v"), row.v, 5e-5);
  }
}

// Chunk times 3, 4, 2 and no latency; bubbles in chunk times.
TEST(Numbers, VPlacement) {
  const Costs costs = times(6, 8, 4);
  const auto measured = [&](const char* name) {
    Request asked = request(name, 8, 16);
    asked.costs = costs;
    return run(asked, costs);
  };
  EXPECT_NEAR(bubble(measured("1f1b")), 126, exact);
  EXPECT_NEAR(bubble(measured("zb-h1")), 70, exact);
  EXPECT_NEAR(span_bubble(measured("zb-h2")), 42, exact);
  EXPECT_NEAR(bubble(measured("v-half")), 80, exact);
  EXPECT_NEAR(bubble(measured("zb-v")), 28, exact);
}

TEST(Numbers, DualpipeMakespans) {
  const std::map<std::pair<int, int>, double> mirrored = {
      {{2, 4}, 12}, {{4, 8}, 26}, {{8, 20}, 66}, {{8, 32}, 102}, {{16, 64}, 206}};
  for (const auto& [size, makespan] : mirrored) {
    const auto [p, m] = size;
    const Simulation s = run(request("dualpipe", p, m), {});
    EXPECT_NEAR(s.makespan, makespan, exact);
    EXPECT_NEAR(s.makespan, 3 * m + p - 2, exact);
    for (const RankResult& rank : s.ranks) {
      EXPECT_NEAR(rank.idle, p - 2, exact);
    }
  }
  EXPECT_NEAR(run(request("dualpipe-v", 4, 8), unit_chunks(2)).makespan, 54, exact);
  EXPECT_NEAR(run(request("dualpipe-v", 8, 16), unit_chunks(2)).makespan, 110, exact);
}

}  // namespace
}  // namespace pipetrain::schedule
