#include "pipetrain/runtime/trace.h"

#include <gtest/gtest.h>

#include "pipetrain/error.h"
#include "pipetrain/schedule/generate.h"

namespace pipetrain {
namespace {

using schedule::Kind;

// Two ranks that began the step a second apart by their own zero, a millisecond apart by the clock.
std::vector<RankTrace> two_ranks() {
  RankTrace first;
  first.start = 1000.000;
  first.compute = {{{Kind::forward, 0, 0}, 0.0, 2.0}, {{Kind::backward, 0, 0}, 7.0, 9.0}};
  first.end_of_step = 9.5;
  RankTrace second;
  second.start = 1000.001;
  second.compute = {{{Kind::forward, 1, 0}, 1.5, 3.5}, {{Kind::backward, 1, 0}, 3.5, 5.5}};
  second.transfers = {{{Kind::receive_forward, 1, 0}, 0.5, 1.5},
                      {{Kind::send_backward, 1, 0}, 5.5, 6.0}};
  return {first, second};
}

TEST(Trace, WhatOverlapsCountsOnce) {
  RankTrace trace = two_ranks()[0];
  EXPECT_EQ(trace.busy(), 4.0);
  trace.compute[0].action.overlaps_next = true;
  trace.compute[1] = {
      {Kind::backward, 0, 0}, -0.5, 1.5};  // begins before the other, ends before it
  EXPECT_EQ(trace.busy(), 2.5);
  trace.compute[1] = {{Kind::backward, 0, 0}, 0.5, 1.5};  // within the other
  trace.compute.push_back({{Kind::backward, 0, 1}, 3.0, 4.0});
  EXPECT_EQ(trace.busy(), 3.0);
  const auto schedule = schedule::generate({.name = "1f1b", .ranks = 2, .microbatches = 1});
  const schedule::Simulation measured =
      measured_step({trace, trace}, schedule::simulate(schedule, {}));
  EXPECT_EQ(measured.ideal, 3.0);
  EXPECT_NEAR(measured.span, 4.0, 1e-3);
}

// The parts of a pair do not end in the order of the list.
TEST(Trace, TheSpanOfARankEndsWithItsLastComputation) {
  RankTrace trace;
  trace.compute = {{{Kind::forward, 0, 0, true}, 1.0, 9.0}, {{Kind::backward, 0, 0}, 0.0, 7.0}};
  const auto schedule = schedule::generate({.name = "1f1b", .ranks = 1, .microbatches = 1});
  EXPECT_EQ(measured_step({trace}, schedule::simulate(schedule, {})).span, 9.0);
}

TEST(Trace, SurvivesTheWayToAnotherRank) {
  const RankTrace sent = two_ranks()[1];
  const RankTrace received = deserialize_trace(serialize(sent));
  EXPECT_EQ(received.start, sent.start);
  EXPECT_EQ(received.end_of_step, sent.end_of_step);
  ASSERT_EQ(received.compute.size(), 2u);
  ASSERT_EQ(received.transfers.size(), 2u);
  EXPECT_EQ(received.compute[1].action, sent.compute[1].action);
  EXPECT_EQ(received.compute[1].end, 5.5);
  EXPECT_EQ(received.transfers[0].start, 0.5);
}

TEST(Trace, ATruncatedMessageIsAnError) {
  std::vector<std::byte> bytes = serialize(two_ranks()[0]);
  bytes.pop_back();
  EXPECT_THROW(deserialize_trace(bytes), InternalError);
  EXPECT_THROW(deserialize_trace({}), InternalError);
}

TEST(Trace, RanksAreAlignedByTheirClocks) {
  const auto schedule = schedule::generate({.name = "1f1b", .ranks = 2, .microbatches = 1});
  const schedule::Simulation measured =
      measured_step(two_ranks(), schedule::simulate(schedule, {}));
  constexpr double clock = 1e-3;  // a double holds the epoch to a quarter of a microsecond
  EXPECT_NEAR(measured.ranks[0].intervals[0].start, 0.0, clock);
  EXPECT_NEAR(measured.ranks[1].intervals[0].start, 2.5, clock);
  EXPECT_NEAR(measured.makespan, 9.0, clock);
  EXPECT_EQ(measured.ranks[0].busy, 4.0);
  EXPECT_EQ(measured.ideal, 4.0);
  ASSERT_EQ(measured.transfers.size(), 1u) << "both ends see a transfer; it is drawn once";
}

}  // namespace
}  // namespace pipetrain
