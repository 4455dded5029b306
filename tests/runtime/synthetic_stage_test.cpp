#ifdef PIPETRAIN_HOST  // ranks as threads, each with a device of its own

#include "pipetrain/runtime/synthetic_stage.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "pipetrain/runtime/executor.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "support/rank_threads.h"

namespace pipetrain {
namespace {

schedule::LoweredSchedule lowered(const std::string& name, int ranks, int microbatches) {
  return schedule::lower(
      schedule::generate({.name = name, .ranks = ranks, .microbatches = microbatches}));
}

// Runs a step on threads and returns the traces of all ranks.
std::vector<RankTrace> run_step(const schedule::LoweredSchedule& schedule,
                                const schedule::Simulation& planned) {
  constexpr size_t bytes = 512;
  const int ranks = schedule.placement.ranks();
  std::vector<RankTrace> traces{size_t(ranks)};
  test::run_ranks(ranks, [&](Control& control) {
    const auto rank = size_t(control.rank());
    Buffer memory(Exchange::bytes(schedule, int(rank), bytes) +
                  Pool::bytes(schedule.activation_slots[rank], bytes) +
                  Pool::bytes(schedule.gradient_slots[rank], bytes));
    Region region(memory);
    Pool activations("activations", schedule.activation_slots[rank], bytes, region);
    Pool gradients("gradients", schedule.gradient_slots[rank], bytes, region);
    Exchange exchange(schedule, make_grid(ranks, int(rank), 1), control, bytes, region);
    std::vector<std::unique_ptr<SyntheticStage>> stages;
    Executor::Stages stage_map;
    for (int stage = 0; stage < schedule.placement.stages(); ++stage) {
      if (schedule.placement.holds(int(rank), stage)) {
        stages.push_back(std::make_unique<SyntheticStage>(
            planned.ranks[rank].intervals, stage, schedule.placement.microbatches(), bytes));
        stage_map[stage] = {stages.back().get()};
      }
    }
    const Stream compute;
    Executor executor(schedule, int(rank), stage_map, exchange, activations, gradients, compute,
                      Executor::Mode::training, {[](int) {}, [](const auto&) {}}, nullptr,
                      stage_map);
    activations.poison();
    gradients.poison();
    control.barrier();
    executor.run_step(0);
    compute.synchronize();
    traces[rank] = executor.trace(0);
    EXPECT_EQ(activations.touched_slots(), activations.slots()) << "rank " << rank;
    EXPECT_EQ(gradients.touched_slots(), gradients.slots()) << "rank " << rank;
    control.barrier();
  });
  return traces;
}

// Whole and split backwards, V and mirrored placements, pairs.
TEST(SyntheticStage, EveryActionTakesItsTimeAndNoStepIsShorterThanPlanned) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v"}) {
    SCOPED_TRACE(name);
    const schedule::LoweredSchedule schedule = lowered(name, 2, 4);
    const schedule::Simulation planned =
        simulate(schedule, {.forward = {4}, .backward_input = {3}, .backward_weight = {2}});
    const std::vector<RankTrace> traces = run_step(schedule, planned);
    for (size_t rank = 0; rank < traces.size(); ++rank) {
      const std::vector<schedule::Interval>& times = planned.ranks[rank].intervals;
      ASSERT_EQ(traces[rank].compute.size(), times.size());
      for (size_t i = 0; i < times.size(); ++i) {
        const schedule::Interval& interval = traces[rank].compute[i];
        EXPECT_GE(interval.end - interval.start, times[i].end - times[i].start - 1e-3)
            << to_string(interval.action);
      }
    }
    constexpr double clocks = 1;  // of the ranks, which are a millisecond apart at most
    EXPECT_GE(measured_step(traces, planned).makespan, planned.makespan - clocks);
  }
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
