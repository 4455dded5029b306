#include "cli/bench_figures.h"

#include <gtest/gtest.h>

#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"

namespace pipetrain {
namespace {

using schedule::Kind;

constexpr double tolerance = 1e-5;  // of times that are seconds since 1970

// One micro-batch on two ranks: F0 0 to 2, its message there at 2.5, F1 2.6 to 4.6, B1 4.6 to 8.6,
// its message there at 9.0, B0 9.1 to 13.1. The second rank's zero is a millisecond later.
std::vector<RankTrace> two_ranks() {
  RankTrace first;
  first.start = 1000.000;
  first.compute = {{{Kind::forward, 0, 0}, 0.0, 2.0}, {{Kind::backward, 0, 0}, 9.1, 13.1}};
  first.transfers = {{{Kind::send_forward, 0, 0}, 2.0, 2.6},
                     {{Kind::receive_backward, 0, 0}, 2.1, 9.0}};
  first.end_of_step = 13.5;
  RankTrace second;
  second.start = 1000.001;
  second.compute = {{{Kind::forward, 1, 0}, 1.6, 3.6}, {{Kind::backward, 1, 0}, 3.6, 7.6}};
  second.transfers = {{{Kind::receive_forward, 1, 0}, -1.0, 1.5},
                      {{Kind::send_backward, 1, 0}, 7.6, 8.1}};
  second.end_of_step = 8.2;
  return {first, second};
}

const schedule::LoweredSchedule& lowered() {
  static const schedule::LoweredSchedule schedule =
      lower(schedule::generate({.name = "1f1b", .ranks = 2, .microbatches = 1}));
  return schedule;
}

TEST(BenchFigures, SayWhereTheTimeOfAStepWent) {
  const schedule::Costs costs = {
      .forward = {2}, .backward_input = {3}, .backward_weight = {1}, .transfer = 0.3};
  const StepFigures figures =
      step_figures(lowered(), simulate(lowered(), costs), costs.transfer, two_ranks(), true);
  EXPECT_NEAR(figures.makespan, 13.1, tolerance);
  EXPECT_NEAR(figures.bubble, (13.1 - 6) / 13.1, tolerance);
  EXPECT_NEAR(figures.exposed_communication, 2.6 - 2.0, tolerance);
  EXPECT_NEAR(figures.action_overhead, 0.05, tolerance);  // 0, 0, 0.1 and 0.1
  ASSERT_TRUE(figures.hop_overhead);
  EXPECT_NEAR(*figures.hop_overhead, 0.15, tolerance);  // 0.5 and 0.4 without the link's 0.3
  EXPECT_NEAR(figures.whole_step, 13.5, tolerance);
}

TEST(BenchFigures, AComputationThatRanLongerThanItsGivenTimeIsOverhead) {
  const schedule::Costs costs = {.forward = {1}, .backward_input = {2}, .backward_weight = {1}};
  const schedule::Simulation planned = simulate(lowered(), costs);
  const StepFigures synthetic = step_figures(lowered(), planned, 0, two_ranks(), true);
  const StepFigures model = step_figures(lowered(), planned, 0, two_ranks(), false);
  EXPECT_NEAR(synthetic.action_overhead, 1.05, tolerance);  // 1, 1, 1.1 and 1.1
  EXPECT_NEAR(model.action_overhead, 0.05, tolerance);
}

TEST(BenchFigures, ExposedIsNoWaitForAMessageThatIsNotComputed) {
  std::vector<RankTrace> ranks = two_ranks();
  ranks[1].start += 0.1;                                         // its F1 at 102.6
  ranks[0].compute[1] = {{Kind::backward, 0, 0}, 108.6, 112.6};  // as soon as B1 has ended
  const StepFigures figures = step_figures(lowered(), simulate(lowered(), {}), 0, ranks, false);
  EXPECT_NEAR(figures.exposed_communication, 102.6 - 2.0, tolerance);
  ranks[0].compute[0].end = 102.6;
  EXPECT_NEAR(
      step_figures(lowered(), simulate(lowered(), {}), 0, ranks, false).exposed_communication, 0,
      tolerance);
}

TEST(BenchFigures, CostsAreMeansOfAStepAndMediansOfTheSteps) {
  std::vector<std::vector<RankTrace>> traces(3, two_ranks());
  traces[1][0].compute[0].end = 50;  // one disturbed step does not count
  const schedule::Costs costs = measured_costs(lowered().placement, traces);
  ASSERT_EQ(costs.forward.size(), 2u);
  EXPECT_NEAR(costs.forward[0], 2, tolerance);
  EXPECT_NEAR(costs.forward[1], 2, tolerance);
  EXPECT_NEAR(costs.backward_input[1], 4, tolerance);  // whole backwards count as one
  EXPECT_EQ(costs.backward_weight[1], 0);
}

// One rank, F0 0 to 2, F1 beside B0 2.5 to 6 and 3 to 8, B1 8 to 12.
TEST(BenchFigures, AnOverlappedPairIsOneComputationOfItsOwnKind) {
  const schedule::Schedule pair = schedule::parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "pair");
  const schedule::LoweredSchedule one_rank = lower(pair);
  RankTrace trace;
  trace.compute = {{pair.ranks[0][0], 0, 2},
                   {pair.ranks[0][1], 2.5, 6},
                   {pair.ranks[0][2], 3, 8},
                   {pair.ranks[0][3], 8, 12}};
  const schedule::Costs costs = measured_costs(one_rank.placement, {{trace}});
  EXPECT_NEAR(costs.forward[0], 2, tolerance);
  EXPECT_NEAR(costs.backward_input[0], 4, tolerance);
  EXPECT_NEAR(costs.overlapped.at(0), 5.5, tolerance);

  const schedule::Costs given = {
      .forward = {2}, .backward_input = {3}, .backward_weight = {1}, .overlapped = {5}};
  const schedule::Simulation planned = simulate(one_rank, given);
  const StepFigures synthetic = step_figures(one_rank, planned, 0, {trace}, true);
  EXPECT_NEAR(synthetic.makespan, 12, tolerance);
  EXPECT_NEAR(synthetic.action_overhead, 0, tolerance);  // 0, -1, 1 and 0
  trace.compute[1].end = trace.compute[2].end = 8.5;
  trace.compute[3] = {pair.ranks[0][3], 8.5, 12.5};
  EXPECT_NEAR(step_figures(one_rank, planned, 0, {trace}, true).action_overhead, 0.75,
              tolerance);  // 0, 1.5, 1.5 and 0: both parts from the end of F0
}

TEST(BenchFigures, MedianOfAnEvenNumberIsTheMeanOfTheMiddle) {
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

}  // namespace
}  // namespace pipetrain
