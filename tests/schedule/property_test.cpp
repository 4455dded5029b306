// What must hold for every schedule at every size.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "pipetrain/error.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"
#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

// What a schedule must refuse; of interleaved groups only what is sure to finish.
bool must_be_refused(const Request& r) {
  const auto is = [&](const char* name) { return r.name == name; };
  const int p = r.ranks;
  const int m = r.microbatches;
  if (is("interleaved") || is("looped-bfs")) {
    return false;
  }
  const bool two = is("zb-v") || is("v-half") || is("v-min") || is("dualpipe-v");
  return r.chunks != (two ? 2 : 1) || (is("dualpipe") && (p % 2 != 0 || m % 2 != 0 || m < 2 * p)) ||
         (is("dualpipe-v") && m < 2 * p) || (is("chimera") && (p % 2 != 0 || m % p != 0)) ||
         (is("pipedream-2bw") && m < p);
}

bool may_deadlock(const Request& r) {
  const int p = r.ranks;
  const int m = r.microbatches;
  const int n = r.group == 0 ? std::min(p, m) : r.group;
  return r.name == "interleaved" && n < m && (n < p || (m % n != 0 && m % n < p));
}

// Calls check(schedule, text) for every schedule that is not refused.
template <typename Check>
void for_each_schedule(int most_ranks, int most_chunks, int microbatches_per_rank, bool groups,
                       Check&& check) {
  const auto visit = [&](const Request& asked) {
    const std::string text =
        asked.name + " p=" + std::to_string(asked.ranks) + " v=" + std::to_string(asked.chunks) +
        " m=" + std::to_string(asked.microbatches) + " n=" + std::to_string(asked.group);
    std::optional<Schedule> schedule;
    try {
      schedule = generate(asked);
    } catch (const UsageError&) {
      EXPECT_TRUE(must_be_refused(asked) || may_deadlock(asked)) << text;
      return;
    }
    EXPECT_FALSE(must_be_refused(asked)) << text;
    check(*schedule, text);
  };
  for (const std::string& name : schedule_names()) {
    for (int p = 1; p <= most_ranks; ++p) {
      for (int v = 1; v <= most_chunks; ++v) {
        for (int m = 1; m <= microbatches_per_rank * p + 3; ++m) {
          visit(request(name, p, m, v));
          for (int group = 1; groups && name == "interleaved" && group <= m; ++group) {
            visit(request(name, p, m, v, group));
          }
        }
      }
    }
  }
}

int peak_pending(const std::vector<Action>& list) {
  int pending = 0;
  int peak = 0;
  for (const Action& action : list) {
    pending += action.kind == Kind::backward_input;
    peak = std::max(peak, pending);
    pending -= action.kind == Kind::backward_weight;
  }
  return peak;
}

void check_everything(const Schedule& schedule, const std::string& text) {
  SCOPED_TRACE(text);
  ASSERT_NO_THROW(validate(schedule));
  const LoweredSchedule lowered = lower(schedule);
  ASSERT_NO_THROW(validate(lowered));

  const Simulation plain = simulate(schedule, {});
  const Simulation slotted = simulate(lowered, {});
  EXPECT_NEAR(slotted.makespan, plain.makespan, 1e-9);
  const Simulation serial = simulate(lowered, {}, Links::one_at_a_time);
  EXPECT_NEAR(serial.makespan, plain.makespan, 1e-9);

  for (int r = 0; r < schedule.placement.ranks(); ++r) {
    EXPECT_EQ(lowered.activation_slots[r], plain.ranks[r].peak_chunks);
    EXPECT_EQ(lowered.gradient_slots[r], peak_pending(schedule.ranks[r]));
    EXPECT_EQ(slotted.ranks[r].peak_chunks, plain.ranks[r].peak_chunks);
  }
}

TEST(Property, EveryScheduleIsValidAndItsSlotsAreItsPeaksAndCostNothing) {
  for_each_schedule(8, 4, 2, false, check_everything);
}

TEST(Property, EveryInterleavedGroupIsValid) {
  for_each_schedule(5, 3, 2, true, check_everything);
}

TEST(SweepProperty, EveryScheduleIsValidAndItsSlotsAreItsPeaksAndCostNothing) {
  for_each_schedule(8, 4, 4, true, check_everything);
}

// A million computations: simulated in under a second, and everything else holds as well.
TEST(SweepProperty, AMillionComputationsAreSimulatedInUnderASecond) {
  const Schedule schedule = generate(request("interleaved", 64, 1024, 8));
  const auto start = std::chrono::steady_clock::now();
  const Simulation plain = simulate(schedule, {});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 1);
  EXPECT_NEAR(bubble(plain), 63 * 3.0 / 8, 1e-6);
  check_everything(schedule, "interleaved p=64 v=8 m=1024");
}

TEST(Property, WeightGradientsAscend) {
  for_each_schedule(6, 3, 2, false, [](const Schedule& schedule, const std::string& text) {
    EXPECT_EQ(validate(schedule), schedule.warnings) << text;
  });
}

// Evaluation runs the forwards of the same schedule, with one activation slot.
TEST(Property, ForwardsAloneFinishWithOneSlot) {
  for_each_schedule(6, 3, 2, false, [](const Schedule& schedule, const std::string& text) {
    const LoweredSchedule lowered = lower(schedule, {true});
    ASSERT_NO_THROW(validate(lowered)) << text;
    EXPECT_EQ(lowered.activation_slots, std::vector<int>(schedule.placement.ranks(), 1)) << text;
    EXPECT_EQ(lowered.gradient_slots, std::vector<int>(schedule.placement.ranks(), 0)) << text;
  });
}

// The schedules whose slots cost nothing whatever the times are.
TEST(Property, SlotsAndGatesCostNothingAtUnequalTimes) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = 1; m <= 3 * p; ++m) {
        for (const Costs& costs :
             {times(3, 4, 2), times(1, 3, 2), times(4, 2, 1), times(2, 1, 3)}) {
          if (may_deadlock(request(name, p, m))) {
            continue;
          }
          const Schedule schedule = generate(request(name, p, m));
          EXPECT_NEAR(simulate(lower(schedule), costs).makespan, simulate(schedule, costs).makespan,
                      1e-9)
              << name << " p=" << p << " m=" << m << " F=" << costs.forward[0];
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::schedule
