#include "pipetrain/schedule/simulate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "pipetrain/error.h"
#include "pipetrain/schedule/lower.h"
#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

constexpr double exact = 1e-9;

TEST(Simulate, ReportsMakespanSpanAndIdeal) {
  // Rank 1 starts and ends one forward, one backward later and earlier.
  const Simulation s = run(request("gpipe", 2, 2), times(2, 3, 1));
  EXPECT_NEAR(s.makespan, 2 * 6 + 6, exact);
  EXPECT_NEAR(s.span, 18, exact);
  EXPECT_NEAR(s.ideal, 12, exact);
  EXPECT_NEAR(s.bubble_fraction(), 6.0 / 18, exact);
  EXPECT_NEAR(s.bubble_over_ideal(), 0.5, exact);
  EXPECT_NEAR(s.ranks[0].busy, 12, exact);
  EXPECT_NEAR(s.ranks[1].idle, 6, exact);
  const Simulation h2 = run(request("zb-h2", 3, 9), {});
  EXPECT_NEAR(h2.span, 27, exact);
  EXPECT_NEAR(h2.makespan, 29, exact);
  EXPECT_NEAR(h2.bubble_fraction_span(), 0, exact);
}

TEST(Simulate, StartsWhenTheRankIsFreeAndTheDataIsThere) {
  const Simulation s = run(request("1f1b", 2, 2), times(1, 1, 1, 0.25));
  const std::vector<Interval>& zero = s.ranks[0].intervals;
  const std::vector<Interval>& one = s.ranks[1].intervals;
  ASSERT_EQ(zero.size(), 4u);
  EXPECT_EQ(to_string(one[0].action), "1F0");
  EXPECT_NEAR(one[0].start, 1.25, exact);
  EXPECT_NEAR(one[1].start, 2.25, exact);  // 1B0, at once
  EXPECT_NEAR(zero[2].start, 4.5, exact);  // 0B0, after 1B0 and a hop
  EXPECT_NEAR(zero[2].end, 6.5, exact);
}

TEST(Simulate, TakesTimesPerRank) {
  Costs costs;
  costs.forward = {1, 2};
  costs.backward_input = {1, 2};
  costs.backward_weight = {1, 2};
  const Simulation s = run(request("1f1b", 2, 4), costs);
  EXPECT_NEAR(s.ideal, 4 * 6, exact);
  EXPECT_NEAR(s.makespan, 1 + 4 * 6 + 2, exact);
  EXPECT_NEAR(s.ranks[0].busy, 12, exact);
  // Two chunks take half of it each.
  EXPECT_NEAR(run(request("interleaved", 2, 4, 2), costs).ranks[1].busy, 24, exact);
}

TEST(Simulate, OverlappedPairsDeliverAtTheirEnd) {
  const Schedule schedule = generate(request("dualpipe", 2, 4));
  Costs costs;
  EXPECT_NEAR(simulate(schedule, costs).makespan, 12, exact);
  costs.overlapped = {2};
  const Simulation s = simulate(schedule, costs);
  EXPECT_NEAR(s.makespan, 11, exact);
  EXPECT_LT(s.bubble_fraction(), 0);
  for (const RankResult& rank : s.ranks) {
    for (size_t i = 0; i < rank.intervals.size(); ++i) {
      if (rank.intervals[i].action.overlaps_next) {
        EXPECT_NEAR(rank.intervals[i].end, rank.intervals[i + 1].end, exact);
        EXPECT_NEAR(rank.intervals[i].start, rank.intervals[i + 1].start, exact);
        EXPECT_NEAR(rank.intervals[i].end - rank.intervals[i].start, 2, exact);
      }
    }
  }
}

// The forward of a pair takes its memory before the backward gives its own back, in either order.
TEST(Simulate, BothEntriesOfAPairHoldTheirMemory) {
  Schedule schedule = generate(request("dualpipe", 4, 10));
  for (std::vector<Action>& list : schedule.ranks) {
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      if (list[i].overlaps_next) {
        std::swap(list[i], list[i + 1]);
        std::swap(list[i].overlaps_next, list[i + 1].overlaps_next);
        ++i;
      }
    }
  }
  EXPECT_EQ(peak_chunks(simulate(schedule, {})), (std::vector<int>{5, 5, 5, 5}));
  EXPECT_EQ(lower(schedule).activation_slots, (std::vector<int>{5, 5, 5, 5}));
}

TEST(Simulate, CountsPendingWeightGradientsWithTheirMemory) {
  Costs costs;
  const Schedule schedule = generate(request("zb-h1", 4, 8));
  const auto peaks = [&](double weight_memory) {
    costs.weight_memory = weight_memory;
    std::vector<double> result;
    for (const RankResult& rank : simulate(schedule, costs).ranks) {
      EXPECT_EQ(rank.peak_chunks, 4);
      result.push_back(rank.peak_activations);
    }
    return result;
  };
  EXPECT_EQ(peaks(1), (std::vector<double>{4, 4, 4, 4}));
  // Rank r has up to r+1 pending while a backward runs.
  EXPECT_NEAR(peaks(1.5)[0], 4.5, exact);
  EXPECT_NEAR(peaks(1.5)[3], 6, exact);
  EXPECT_NEAR(peaks(0.5)[3], 2.5, exact);
}

TEST(Simulate, RejectsTimesThatAreNone) {
  const Schedule schedule = generate(request("1f1b", 2, 2));
  const auto message = [&](const Costs& costs) {
    try {
      simulate(schedule, costs);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Costs negative;
  negative.forward = {-1};
  EXPECT_NE(message(negative).find("--forward"), std::string::npos);
  Costs many;
  many.backward_input = {1, 2, 3};
  EXPECT_NE(message(many).find("--backward-input has 3 values"), std::string::npos);
  Costs none;
  none.backward_weight = {};
  EXPECT_NE(message(none).find("--backward-weight"), std::string::npos);
  Costs nan;
  nan.latency = std::nan("");
  EXPECT_NE(message(nan).find("--latency"), std::string::npos);
  Costs overlapped;
  overlapped.overlapped = {1, -2};
  EXPECT_NE(message(overlapped).find("--overlapped"), std::string::npos);
}

TEST(Simulate, SaysWhereListsDeadlock) {
  Schedule schedule = generate(request("1f1b", 2, 2));
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);
  try {
    simulate(schedule, {});
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1, position 0: 1B0 waits for 1F0"),
              std::string::npos)
        << error.what();
  }
}

TEST(SimulateLowered, ChargesReductionsAndOptimizerSteps) {
  Costs costs;
  const Schedule schedule = generate(request("1f1b", 2, 4));
  const double plain = simulate(lower(schedule), costs).makespan;
  costs.reduce = 0.5;
  costs.optimizer_step = 0.25;
  EXPECT_NEAR(simulate(lower(schedule), costs).makespan, plain + 0.75, exact);
  EXPECT_NEAR(simulate(lower(schedule), costs).ranks[1].busy, 12.75, exact);
  EXPECT_NEAR(simulate(lower(schedule), costs).ideal, 12, exact);
}

TEST(SimulateLowered, KeepsALinkBusyForTheTransfer) {
  // One hop takes three forwards: the link sets the pace of the forwards.
  Costs costs = times(1, 1, 1);
  costs.transfer = 3;
  const Simulation s = simulate(lower(generate(request("gpipe", 2, 4))), costs);
  const std::vector<Interval>& transfers = s.transfers;
  double link = 0;
  int forwards = 0;
  for (const Interval& transfer : transfers) {
    if (transfer.action.kind == Kind::send_forward) {
      EXPECT_GE(transfer.start, link - exact);
      link = transfer.end;
      ++forwards;
    }
  }
  EXPECT_EQ(forwards, 4);
  EXPECT_NEAR(link, 1 + 4 * 3, exact);
  EXPECT_NEAR(s.ranks[1].intervals[3].start, 13, exact);
}

TEST(SimulateLowered, TransfersTakeTheLatencyOnTop) {
  Costs costs = times(1, 1, 1, 0.5);
  costs.transfer = 0.25;
  const Simulation s = simulate(lower(generate(request("gpipe", 2, 1))), costs);
  EXPECT_NEAR(s.ranks[1].intervals[0].start, 1.75, exact);
  EXPECT_NEAR(s.makespan, 6 + 2 * 0.75, exact);
}

// With a slow link a writer waits for a slot.
TEST(SimulateLowered, WaitsForSlots) {
  Costs costs = times(1, 1, 1);
  costs.transfer = 4;
  const Simulation s = simulate(lower(generate(request("gpipe", 2, 5))), costs);
  // 0F2 needs the slot of 0F0, whose transfer ends at 1 + 4.
  EXPECT_NEAR(s.ranks[0].intervals[1].start, 1, exact);
  EXPECT_NEAR(s.ranks[0].intervals[2].start, 5, exact);
}

TEST(SimulateLowered, WaitsForGates) {
  Costs costs;
  costs.forward = {1, 3};
  const Simulation s = simulate(lower(generate(request("1f1b", 2, 2))), costs);
  // 0F1 ends at 2, but its consumer stands behind 1B0, which starts at 4.
  EXPECT_EQ(to_string(s.transfers[1].action), "0SEND_F1");
  EXPECT_NEAR(s.transfers[1].start, 4, exact);
}

// With more than one incoming slot the link itself is what messages queue for.
TEST(SimulateLowered, MessagesOfAChannelShareItsLink) {
  LoweredSchedule lowered = lower(generate(request("gpipe", 2, 2)));
  const int forward = lowered.channels[0].direction == Direction::forward ? 0 : 1;
  lowered.channels[forward].incoming_slots = 2;
  for (LoweredAction& entry : lowered.ranks[1]) {
    if (entry.action.kind == Kind::receive_forward) {
      entry.message.slot = entry.action.microbatch;
      entry.gate = -1;
    } else if (entry.action.kind == Kind::forward) {
      entry.input.slot = entry.action.microbatch;
    }
  }
  Costs costs = times(1, 1, 1, 4);
  costs.transfer = 2;
  const Simulation s = simulate(lowered, costs);
  // Sent at 1 and, when the link is free, at 3: not when the first has arrived, at 7.
  EXPECT_NEAR(s.ranks[1].intervals[0].start, 7, exact);
  EXPECT_NEAR(s.ranks[1].intervals[1].start, 9, exact);
}

TEST(SimulateLowered, OneAtATimeSerialisesTheLinksOfARank) {
  Costs costs = times(1, 1, 1);
  costs.transfer = 1;
  const LoweredSchedule lowered = lower(generate(request("1f1b", 3, 6)));
  const Simulation parallel = simulate(lowered, costs);
  const Simulation serial = simulate(lowered, costs, Links::one_at_a_time);
  EXPECT_GE(serial.makespan, parallel.makespan - exact);
  double busy = 0;  // rank 1 has all transfers
  for (const Interval& transfer : serial.transfers) {
    EXPECT_GE(transfer.start, busy - exact);
    busy = transfer.end;
  }
}

}  // namespace
}  // namespace pipetrain::schedule
