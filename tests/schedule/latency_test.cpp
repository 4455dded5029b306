// What the latency of a hop adds to the bubble of each schedule.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

constexpr double exact = 1e-9;

double added(const Request& asked, double f, double b, double w, double c) {
  return run(asked, times(f, b, w, c)).makespan - run(asked, times(f, b, w)).makespan;
}

TEST(Latency, Of1f1bGrowsWithTheMicrobatches) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = p; m <= 4 * p; m += p) {
      for (const double c : {0.125, 0.5}) {
        EXPECT_NEAR(added(request("1f1b", p, m), 3, 4, 2, c),
                    c * (2.0 * (p - 1) * m / p + 2 * (p - 2)), exact)
            << "p=" << p << " m=" << m << " c=" << c;
      }
    }
  }
}

TEST(Latency, OfInterleavedCountsEveryStageOnce) {
  for (int p = 2; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = p; m <= 4 * p; m += p) {
        for (const double c : {0.125, 3.0 / v}) {
          EXPECT_NEAR(added(request("interleaved", p, m, v), 3, 4, 2, c), 2 * (p * v - 1) * c,
                      exact)
              << "p=" << p << " v=" << v << " m=" << m << " c=" << c;
        }
      }
    }
  }
}

TEST(Latency, OfGpipeIsOneWayDownAndUp) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 2 * p; ++m) {
      EXPECT_NEAR(added(request("gpipe", p, m), 3, 4, 2, 1.5), 2 * (p - 1) * 1.5, exact);
    }
  }
}

TEST(Latency, OfZbH1IsTwiceThatOfGpipe) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = p; m <= 4 * p; ++m) {
      for (const double c : {0.125, 1.0}) {
        EXPECT_NEAR(added(request("zb-h1", p, m), 3, 4, 2, c),
                    4 * (p - 1) * c - (m == p ? 2 * c : 0), exact)
            << "p=" << p << " m=" << m << " c=" << c;
      }
    }
  }
}

// With a barrier at the end of the step zb-h2 gains nothing over zb-h1 at equal times.
TEST(Latency, OfZbH2ShowsInTheSpan) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = 2 * p; m <= 4 * p; ++m) {
      for (const double c : {0.125, 0.5}) {
        const double f = 3, b = 4, w = 2;
        const Simulation s = run(request("zb-h2", p, m), times(f, b, w, c));
        EXPECT_NEAR(span_bubble(s), (p - 1) * (f + b + 2 * c - 2 * w), exact)
            << "p=" << p << " m=" << m << " c=" << c;
        EXPECT_NEAR(bubble(s), (p - 1) * std::max(f + c, f + b + 2 * c - 2 * w), exact)
            << "p=" << p << " m=" << m << " c=" << c;
      }
    }
  }
  EXPECT_NEAR(run(request("zb-h2", 4, 16), {}).makespan, run(request("zb-h1", 4, 16), {}).makespan,
              exact);
}

}  // namespace
}  // namespace pipetrain::schedule
