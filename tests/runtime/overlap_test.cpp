#ifdef PIPETRAIN_HOST

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/parallel.h"
#include "pipetrain/runtime/executor.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/lower.h"
#include "support/rank_threads.h"

// The two parts of an overlapped pair run side by side, and nothing else does.

namespace pipetrain {
namespace {

using schedule::Interval;
using schedule::Kind;

// Where the two parts of a pair wait for each other.
struct Meeting {
  std::atomic<int> begun = 0;
  std::atomic<int> met = 0;
};

void meet(Meeting* meeting) {
  constexpr auto patience = std::chrono::seconds(5);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  ++meeting->begun;
  while (meeting->begun < 2 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  meeting->met += meeting->begun == 2;
}

// Micro-batch i meets i+1: each of F(i+1) and the backward of i ends once the other has begun. One
// stage holds the whole model, so there are no messages.
class MeetingStage final : public Stage {
 public:
  explicit MeetingStage(int microbatches) : meetings_(size_t(microbatches) + 1) {}

  void load_input(std::byte*, const std::byte*, const Stream&) override {}
  void load_output_gradient(std::byte*, std::byte*, const std::byte*, const Stream&) override {}
  void forward(int microbatch, std::byte*, std::byte*, bool, const Stream& stream) override {
    if (microbatch > 0) {
      submit(size_t(microbatch), stream);
    }
  }
  void backward(int microbatch, std::byte*, std::byte*, const Stream& stream) override {
    if (size_t(microbatch) + 2 < meetings_.size()) {
      submit(size_t(microbatch) + 1, stream);
    }
  }
  void backward_input(int microbatch, std::byte* slot, std::byte*, std::byte* input_gradient,
                      const Stream& stream) override {
    backward(microbatch, slot, input_gradient, stream);
  }
  void backward_weight(int, std::byte*, std::byte*, const Stream&) override {}

  int met(int microbatch) const { return meetings_[size_t(microbatch)].met; }

 private:
  void submit(size_t meeting, const Stream& stream) {
    kernels::launch(meet, 1, stream.get(), &meetings_[meeting]);
  }
  std::vector<Meeting> meetings_;
};

// A step of the schedule on one rank.
RankTrace run_step(const schedule::LoweredSchedule& schedule, Stage& stage) {
  RankTrace trace;
  test::run_ranks(1, [&](Control& control) {
    constexpr size_t bytes = 256;
    Buffer memory(Pool::bytes(schedule.activation_slots[0], bytes) +
                  Pool::bytes(schedule.gradient_slots[0], bytes));
    Region region(memory);
    Pool activations("activations", schedule.activation_slots[0], bytes, region);
    Pool gradients("gradients", schedule.gradient_slots[0], bytes, region);
    Exchange exchange(schedule, make_grid(1, 0, 1), control, bytes, region);
    const Stream compute;
    Executor executor(schedule, 0, {{0, {&stage}}}, exchange, activations, gradients, compute,
                      Executor::Mode::training, {[](int) {}, [](const auto&) {}}, nullptr,
                      {{0, {&stage}}});
    executor.run_step(0);
    compute.synchronize();
    trace = executor.trace(0);
  });
  return trace;
}

bool overlap(const Interval& a, const Interval& b) {
  return a.start < b.end && b.start < a.end;
}

void expect_pairs_overlap(const schedule::Schedule& schedule) {
  const int microbatches = schedule.placement.microbatches();
  MeetingStage stage(microbatches);
  const RankTrace trace = run_step(lower(schedule), stage);
  for (int microbatch = 1; microbatch < microbatches; ++microbatch) {
    EXPECT_EQ(stage.met(microbatch), 2) << "of the pair with F" << microbatch;
  }
  ASSERT_EQ(trace.compute.size(), schedule.ranks[0].size());
  double end = 0;  // of what stands before
  for (size_t i = 0; i < trace.compute.size(); ++i) {
    const Interval& interval = trace.compute[i];
    EXPECT_GE(interval.start, end) << to_string(interval.action);
    if (interval.action.overlaps_next) {
      const Interval& other = trace.compute[++i];
      EXPECT_TRUE(overlap(interval, other)) << to_string(interval.action);
      EXPECT_GE(other.start, end) << to_string(other.action);
      end = std::max(end, other.end);
    }
    end = std::max(end, interval.end);
  }
  double sum = 0;
  for (const Interval& interval : trace.compute) {
    sum += interval.end - interval.start;
  }
  EXPECT_LT(trace.busy(), sum);
  EXPECT_LE(trace.busy(), end);
}

TEST(Overlap, BothPartsOfAPairRunAtOnceAndNothingElseDoes) {
  expect_pairs_overlap(schedule::parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2\n",
                                           "whole backwards"));
  expect_pairs_overlap(schedule::parse_csv(
      "0F0,(0F1;0I0)OVERLAP_F_B,0W0,(0F2;0I1)OVERLAP_F_B,0W1,0B2\n", "input gradients"));
}

TEST(Overlap, TheOrderOfAPairInTheListIsFree) {
  schedule::Schedule schedule =
      schedule::parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2\n", "backward first");
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  std::swap(schedule.ranks[0][1].overlaps_next, schedule.ranks[0][2].overlaps_next);
  expect_pairs_overlap(schedule);
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
