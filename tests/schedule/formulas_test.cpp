// Closed forms of the literature: bubble and peak activations of every schedule.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

constexpr double exact = 1e-9;

// Times with F, B, W in all orders of size.
const std::vector<Costs> all_times = {times(1, 1, 1), times(3, 4, 2), times(2, 1, 3),
                                      times(1, 3, 2), times(4, 1, 1), times(1, 2, 5)};
// W <= F and W <= B.
const std::vector<Costs> short_weights = {times(1, 1, 1), times(3, 4, 2), times(4, 3, 2),
                                          times(2, 2, 1), times(2, 5, 2)};

double F(const Costs& costs) {
  return costs.forward[0];
}
double B(const Costs& costs) {
  return costs.backward_input[0];
}
double W(const Costs& costs) {
  return costs.backward_weight[0];
}
double total(const Costs& costs) {
  return F(costs) + B(costs) + W(costs);
}

TEST(Formulas, GpipeAnd1f1bIdleForTheOtherRanks) {
  for (const Costs& costs : all_times) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 2 * p + 3; ++m) {
        const Simulation gpipe = run(request("gpipe", p, m), costs);
        const Simulation one = run(request("1f1b", p, m), costs);
        EXPECT_NEAR(bubble(gpipe), (p - 1) * total(costs), exact);
        EXPECT_NEAR(bubble(one), (p - 1) * total(costs), exact);
        for (int r = 0; r < p; ++r) {
          EXPECT_EQ(gpipe.ranks[r].peak_chunks, m);
          EXPECT_EQ(one.ranks[r].peak_chunks, std::min(m, p - r));
        }
      }
    }
  }
}

TEST(Formulas, InterleavedDividesTheBubbleByTheChunks) {
  for (const Costs& costs : all_times) {
    for (int p = 1; p <= 6; ++p) {
      for (int v = 1; v <= 4; ++v) {
        for (int m = p; m <= 2 * p + 3; ++m) {
          for (int n = p; n <= m; ++n) {
            if (m % n != 0 && m % n < p) {
              continue;
            }
            const Simulation s = run(request("interleaved", p, m, v, n), costs);
            EXPECT_NEAR(bubble(s), (p - 1) * total(costs) / v, exact)
                << "p=" << p << " v=" << v << " n=" << n << " m=" << m;
            for (int r = 0; r < p; ++r) {
              EXPECT_EQ(s.ranks[r].peak_chunks, std::min(m * v, 2 * (p - 1 - r) + (v - 1) * n + 1));
            }
            if (n == p) {
              EXPECT_NEAR(s.ranks[0].peak_activations, std::min<double>(m, p + (p - 1.0) / v),
                          exact);
            }
          }
        }
      }
    }
  }
}

// The three texts' formulas of interleaved: over the ideal time, over the step, and neither.
TEST(Formulas, InterleavedBubbleIsReportedOverTheIdealAndOverTheStep) {
  for (int p = 2; p <= 6; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = p; m <= 3 * p; m += p) {
        const Simulation s = run(request("interleaved", p, m, v), times(3, 4, 2));
        EXPECT_NEAR(s.bubble_over_ideal(), (p - 1.0) / (v * m), exact);
        EXPECT_NEAR(s.bubble_fraction(), (p - 1.0) / (v * m + p - 1), exact);
        if (v > 1) {
          EXPECT_GT(std::abs(s.bubble_fraction() - (p - 1.0) / (v * (m + p - 1))), 1e-3);
        }
      }
    }
  }
}

TEST(Formulas, FourMicrobatchesPerRankKeepTheBubbleUnderAFifth) {
  for (int p = 2; p <= 64; p *= 2) {
    EXPECT_LT(run(request("1f1b", p, 4 * p), {}).bubble_fraction(), 0.2) << "p=" << p;
  }
  EXPECT_NEAR(run(request("1f1b", 64, 64), {}).bubble_fraction(), 0.5, 0.005);
}

TEST(Formulas, LoopedBfsDividesTheBubbleByTheChunksAndKeepsAll) {
  for (const Costs& costs : all_times) {
    for (int p = 1; p <= 8; ++p) {
      for (int v = 1; v <= 4; ++v) {
        for (int m = p; m <= 2 * p + 3; ++m) {
          const Simulation s = run(request("looped-bfs", p, m, v), costs);
          EXPECT_NEAR(bubble(s), (p - 1) * total(costs) / v, exact);
          EXPECT_EQ(s.ranks[0].peak_chunks, m * v);
          EXPECT_NEAR(s.ranks[p - 1].peak_activations, m, exact);
        }
      }
    }
  }
}

TEST(Formulas, ZbH1FillsTheBubbleWithWeightGradients) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 2 * p + 3; ++m) {
      for (const Costs& costs : short_weights) {
        const Simulation s = run(request("zb-h1", p, m), costs);
        if (m >= p) {
          EXPECT_NEAR(bubble(s), (p - 1) * (F(costs) + B(costs) - W(costs)), exact)
              << "p=" << p << " m=" << m;
        }
        EXPECT_EQ(s.ranks[0].peak_chunks, std::min(m, p));
        EXPECT_NEAR(s.ranks[p - 1].peak_activations, std::min(m, p), exact);
      }
      for (const Costs& costs : all_times) {
        const double longest = std::max({F(costs), B(costs), F(costs) + B(costs) - W(costs)});
        if (m >= p) {
          EXPECT_NEAR(bubble(run(request("zb-h1", p, m), costs)), (p - 1) * longest, exact)
              << "p=" << p << " m=" << m << " F=" << F(costs) << " B=" << B(costs);
        }
      }
    }
  }
}

TEST(Formulas, ZbH2HasNoBubbleBetweenFirstAndLast) {
  for (const Costs& costs : all_times) {
    if (W(costs) > F(costs)) {
      continue;
    }
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 4 * p; ++m) {
        const Simulation s = run(request("zb-h2", p, m), costs);
        if (m >= 2 * p - 1) {
          EXPECT_NEAR(span_bubble(s), (p - 1) * std::max(0.0, F(costs) + B(costs) - 2 * W(costs)),
                      exact)
              << "p=" << p << " m=" << m;
        }
        EXPECT_EQ(worst_peak(s), std::min(m, 2 * p - 1)) << "p=" << p << " m=" << m;
      }
    }
  }
}

TEST(Formulas, ZbVHasNoBubbleAtEqualTimes) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 4 * p; ++m) {
      const Simulation s = run(request("zb-v", p, m), times(1, 1, 1));
      EXPECT_NEAR(span_bubble(s), std::max(0, 2 * p - 1 - m), exact) << "p=" << p << " m=" << m;
      EXPECT_EQ(worst_peak(s), 2 * std::min(m, p)) << "p=" << p << " m=" << m;
    }
  }
}

TEST(Formulas, VHalfAndVMinKeepHalfAndAThird) {
  for (const Costs& costs : all_times) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 2 * p; m <= 4 * p; m += 3) {
        Request half = request("v-half", p, m);
        Request third = request("v-min", p, m);
        half.costs = third.costs = costs;
        const int half_peak = worst_peak(run(half, costs));
        const int third_peak = worst_peak(run(third, costs));
        EXPECT_LE(half_peak, 2 * ((p + 2) / 2)) << "p=" << p << " m=" << m;
        EXPECT_LE(third_peak, 2 * ((p + 4) / 3)) << "p=" << p << " m=" << m;
        if (F(costs) == B(costs) && B(costs) == W(costs)) {
          EXPECT_EQ(half_peak, 2 * ((p + 2) / 2)) << "p=" << p << " m=" << m;
          EXPECT_EQ(third_peak, 2 * ((p + 4) / 3)) << "p=" << p << " m=" << m;
        }
      }
    }
  }
}

// Where W is shorter than F or B the pattern of v-min does not close up: every micro-batch adds
// idle time, in the end more than 1f1b has.
TEST(Formulas, VMinGrowsWithTheMicrobatchesUnlessTimesAreEqual) {
  const auto idle = [](const char* name, int m, const Costs& costs) {
    Request asked = request(name, 8, m);
    asked.costs = costs;
    return bubble(run(asked, costs));
  };
  const Costs equal = times(1, 1, 1);
  EXPECT_NEAR(idle("v-min", 64, equal), idle("v-min", 16, equal), exact);
  EXPECT_LT(idle("v-min", 64, equal), 0.75 * idle("1f1b", 64, equal));
  const Costs unequal = times(3, 4, 2);
  EXPECT_GT(idle("v-min", 64, unequal), 2 * idle("v-min", 16, unequal));
  EXPECT_GT(idle("v-min", 64, unequal), idle("1f1b", 64, unequal));
}

// With pairs shorter than their parts, ranks save time by pairs: the rank with the most idle time
// has the bubble of the formula.
TEST(Formulas, DualpipeIdlesForHalfOfTheRanks) {
  for (const double w : {0.5, 1.0, 2.0}) {
    for (const double pair : {4 + w, 3.5 + w}) {
      for (int p = 2; p <= 8; p += 2) {
        for (int m = 2 * p; m <= 4 * p; m += 2) {
          Costs costs = times(2, 2, w);
          costs.overlapped = {pair};
          const double idle = (p / 2 - 1) * (pair + (2 + w) - 3 * w);
          EXPECT_NEAR(most_idle(run(request("dualpipe", p, m), costs)), idle, exact)
              << "p=" << p << " m=" << m;
        }
      }
      for (int p = 1; p <= 6; ++p) {
        for (int m = 2 * p; m <= 4 * p; ++m) {
          Costs costs = times(4, 4, 2 * w);
          costs.overlapped = {2 * pair};
          const double idle = (p - 1) * (pair + (2 + w) - 3 * w);
          EXPECT_NEAR(most_idle(run(request("dualpipe-v", p, m), costs)), idle, exact)
              << "p=" << p << " m=" << m;
        }
      }
    }
  }
}

TEST(Formulas, DualpipeKeepsOneMoreThanTheRanks) {
  for (int p = 2; p <= 8; p += 2) {
    for (int m = 2 * p; m <= 4 * p; m += 2) {
      for (const int peak : peak_chunks(run(request("dualpipe", p, m), {}))) {
        EXPECT_EQ(peak, p + 1) << "p=" << p << " m=" << m;
      }
    }
  }
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p; m <= 4 * p; ++m) {
      for (const RankResult& rank : run(request("dualpipe-v", p, m), {}).ranks) {
        EXPECT_NEAR(rank.peak_activations, p + 0.5, exact) << "p=" << p << " m=" << m;
      }
    }
  }
}

TEST(Formulas, ChimeraTilesItsBlocks) {
  for (int p = 2; p <= 8; p += 2) {
    for (int m = p; m <= 4 * p; m += p) {
      const Simulation s = run(request("chimera", p, m), times(1, 0.5, 0.5));
      EXPECT_NEAR(s.makespan, 2 * m + p - 2, exact);
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(s.ranks[r].peak_chunks, p / 2 + 1 + std::min(r, p - 1 - r))
            << "p=" << p << " m=" << m;
      }
    }
  }
}

TEST(Formulas, AsynchronousSchedulesHaveNoBubbleInSteadyState) {
  for (const char* name : {"pipedream", "pipedream-2bw"}) {
    for (const Costs& costs : all_times) {
      for (int p = 1; p <= 8; ++p) {
        for (int m = p; m <= 3 * p; ++m) {
          const double longer = run(request(name, p, m + 1), costs).makespan;
          EXPECT_NEAR(longer - run(request(name, p, m), costs).makespan, total(costs), exact);
        }
      }
    }
  }
}

TEST(Formulas, AsynchronousSchedulesKeepWeightVersions) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 4 * p; ++m) {
      const Simulation s = run(request("pipedream", p, m), {});
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(s.ranks[r].peak_chunks, std::min(m, p - r));
        EXPECT_EQ(s.ranks[r].weight_versions, std::min(m, p - r)) << "p=" << p << " m=" << m;
      }
      if (m >= p) {
        for (const RankResult& rank : run(request("pipedream-2bw", p, m), {}).ranks) {
          EXPECT_EQ(rank.weight_versions, 2);
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::schedule
