#ifdef PIPETRAIN_HOST

#include "pipetrain/runtime/executor.h"

#include <emulator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "support/rank_threads.h"

namespace pipetrain {
namespace {

// A stage that computes nothing: it copies each micro-batch's message from place to place, so that
// what comes out says which messages went where. Stage 0 reads `source` (a message per micro-batch)
// in F and writes what the backward brings it into `returned`; the last stage sends F's input back.
class CopyStage : public Stage {
 public:
  CopyStage(size_t bytes, std::byte* source, std::byte* returned)
      : bytes_(bytes), source_(source), returned_(returned) {}

  void load_input(std::byte* slot, const std::byte* message, const Stream& stream) override {
    copy(slot, message, stream);
  }
  void forward(int microbatch, std::byte* slot, std::byte* output, bool,
               const Stream& stream) override {
    if (source_ != nullptr) {
      copy(slot, source_ + size_t(microbatch) * bytes_, stream);
    }
    if (output != nullptr) {
      copy(output, slot, stream);
    }
  }
  void load_output_gradient(std::byte* slot, std::byte*, const std::byte* message,
                            const Stream& stream) override {
    copy(slot, message, stream);
  }
  void backward(int microbatch, std::byte* slot, std::byte* input_gradient,
                const Stream& stream) override {
    backward_input(microbatch, slot, slot, input_gradient, stream);
    backward_weight(microbatch, slot, slot, stream);
  }
  void backward_input(int, std::byte* slot, std::byte*, std::byte* input_gradient,
                      const Stream& stream) override {
    if (input_gradient != nullptr) {
      copy(input_gradient, slot, stream);
    }
  }
  void backward_weight(int microbatch, std::byte* slot, std::byte*, const Stream& stream) override {
    if (returned_ != nullptr) {
      copy(returned_ + size_t(microbatch) * bytes_, slot, stream);
    }
  }

 private:
  void copy(std::byte* to, const std::byte* from, const Stream& stream) const {
    check(cudaMemcpyAsync(to, from, bytes_, cudaMemcpyDeviceToDevice, stream.get()), "copy");
  }

  size_t bytes_;
  std::byte* source_;
  std::byte* returned_;
};

struct Case {
  std::string schedule;
  int ranks = 1;
  int chunks = 1;
  int microbatches = 1;
};

std::string name_of(const Case& c) {
  return c.schedule + " p=" + std::to_string(c.ranks) + " v=" + std::to_string(c.chunks) +
         " m=" + std::to_string(c.microbatches);
}

schedule::LoweredSchedule lowered(const Case& c) {
  return schedule::lower(schedule::generate(
      {.name = c.schedule, .ranks = c.ranks, .microbatches = c.microbatches, .chunks = c.chunks}));
}

// Sends micro-batches through a pipeline of copying stages, twice, and checks that each comes back
// as it was.
void expect_every_message_returns(const Case& c, size_t bytes = 1024) {
  const schedule::LoweredSchedule schedule = lowered(c);
  test::run_ranks(c.ranks, [&](Control& control) {
    SCOPED_TRACE(name_of(c));
    const int rank = control.rank();
    const Grid grid = make_grid(c.ranks, rank, 1);
    const size_t all_bytes = size_t(c.microbatches) * bytes;
    Buffer data(2 * all_bytes);
    Buffer slots(Exchange::bytes(schedule, rank, bytes));
    const int activation_slots = schedule.activation_slots[size_t(rank)];
    const int gradient_slots = schedule.gradient_slots[size_t(rank)];
    Buffer pools(Pool::bytes(activation_slots, bytes) + Pool::bytes(gradient_slots, bytes));
    Region slot_region(slots);
    Region pool_region(pools);
    Pool activations("activations", activation_slots, bytes, pool_region);
    Pool gradients("gradients", gradient_slots, bytes, pool_region);
    Exchange exchange(schedule, grid, control, bytes, slot_region);
    Stream compute;

    std::vector<std::unique_ptr<CopyStage>> stages;
    Executor::Stages stage_map;
    for (int stage = 0; stage < schedule.placement.stages(); ++stage) {
      if (schedule.placement.holds(rank, stage)) {
        stages.push_back(
            std::make_unique<CopyStage>(bytes, stage == 0 ? data.data() : nullptr,
                                        stage == 0 ? data.data() + all_bytes : nullptr));
        stage_map[stage] = {stages.back().get()};
      }
    }
    int optimizer_steps = 0;
    Executor executor(schedule, rank, stage_map, exchange, activations, gradients, compute,
                      Executor::Mode::training,
                      {[](int) {}, [&](const auto&) { ++optimizer_steps; }}, nullptr, stage_map);
    PinnedBuffer sent(all_bytes);
    std::vector<std::byte> received(all_bytes);
    activations.poison();
    for (int64_t step = 0; step < 2; ++step) {
      for (size_t i = 0; i < all_bytes; ++i) {
        sent.data()[i] = static_cast<std::byte>(i / bytes * 7 + i % bytes + size_t(step));
      }
      check(cudaMemcpyAsync(data.data(), sent.data(), all_bytes, cudaMemcpyHostToDevice,
                            compute.get()),
            "copy");
      executor.run_step(step);
      compute.synchronize();
      check(cudaMemcpy(received.data(), data.data() + all_bytes, all_bytes, cudaMemcpyDeviceToHost),
            "copy");
      for (int i = 0; i < c.microbatches; ++i) {
        if (schedule.placement.owner(0, i) == rank) {
          EXPECT_EQ(std::memcmp(sent.data() + size_t(i) * bytes,
                                received.data() + size_t(i) * bytes, bytes),
                    0)
              << "step " << step << " micro-batch " << i;
        }
      }
      const RankTrace trace = executor.trace(step);
      EXPECT_EQ(trace.compute.size() + trace.transfers.size() + 1 + stage_map.size(),
                schedule.ranks[size_t(rank)].size());
    }
    EXPECT_EQ(optimizer_steps, 2);
    EXPECT_EQ(activations.touched_slots(), activation_slots) << "rank " << rank;
    control.barrier();
  });
}

class ExecutorUnderDelays : public testing::Test {
 protected:
  void SetUp() override { saved_ = emulator::settings(); }
  void TearDown() override { emulator::set_settings(saved_); }
  emulator::Settings saved_;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"gpipe", 1, 1, 1},       {"gpipe", 4, 1, 3},       {"1f1b", 1, 1, 4},
      {"1f1b", 2, 1, 1},        {"1f1b", 4, 1, 2},        {"1f1b", 4, 1, 8},
      {"interleaved", 1, 4, 3}, {"interleaved", 2, 2, 4}, {"interleaved", 4, 2, 8},
      {"interleaved", 2, 4, 1}, {"dualpipe-v", 1, 2, 3},  {"dualpipe-v", 2, 2, 5},
      {"dualpipe", 2, 1, 6},    {"chimera", 4, 1, 8},     {"zb-h1", 4, 1, 8},
      {"zb-h2", 2, 1, 3},       {"zb-v", 2, 2, 5},
  };
  return list;
}

// Fault 6: delays of ranks or links change results or hang. Fault 22: only the newest input
// gradient is kept. Fault 23: the first step is right and the second one is not. Fault 5: a receive
// that is posted early blocks independent work behind it.
TEST_F(ExecutorUnderDelays, EveryMessageReturns) {
  for (const uint64_t seed : {0, 1, 2}) {
    emulator::Settings settings = saved_;
    settings.delay_seed = seed;
    emulator::set_settings(settings);
    for (const Case& c : cases()) {
      expect_every_message_returns(c);
    }
  }
}

TEST_F(ExecutorUnderDelays, EveryMessageReturnsWithTransfersOneAtATime) {
  emulator::Settings settings = saved_;
  settings.one_at_a_time = true;
  settings.delay_seed = 3;
  emulator::set_settings(settings);
  for (const Case& c : cases()) {
    expect_every_message_returns(c);
  }
}

// Fault 3: an exchange that relies on buffered sends passes with small messages and hangs with
// large ones.
TEST(Executor, LargeMessagesReturn) {
  expect_every_message_returns({"1f1b", 2, 1, 3}, size_t(8) << 20);
}

// Fault 31: receive buffers for every micro-batch.
TEST(Exchange, SlotsDoNotGrowWithMicrobatches) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Exchange::bytes(lowered({"1f1b", 4, 1, 8}), rank, 1000),
              Exchange::bytes(lowered({"1f1b", 4, 1, 64}), rank, 1000));
  }
  // Middle ranks: two channels in (1 slot), two out (2 slots), 1000 bytes rounded to 1024.
  EXPECT_EQ(Exchange::bytes(lowered({"1f1b", 4, 1, 8}), 1, 1000), 6u * 1024);
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
