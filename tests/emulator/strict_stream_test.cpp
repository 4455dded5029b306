#ifdef PIPETRAIN_HOST

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/emulator/strict_fixture.h"

namespace pipetrain::test {
namespace {

using StrictStream = Strict;

constexpr size_t bytes = 4096;

// Hands `rounds` values from one stream to another and back, with two waits a round, and returns
// how many arrived wrong.
struct HandOver {
  cudaStream_t writer, reader;
  cudaEvent_t written, read;
  char* buffer;
  char* seen;  // pinned, one per round

  int run(int rounds, bool wait) const {
    ok(cudaEventRecord(read, reader));
    for (int round = 0; round < rounds; ++round) {
      if (wait) {
        ok(cudaStreamWaitEvent(writer, read));
      }
      ok(cudaMemsetAsync(buffer, round, bytes, writer));
      ok(cudaEventRecord(written, writer));
      if (wait) {
        ok(cudaStreamWaitEvent(reader, written));
      }
      ok(cudaMemcpyAsync(seen + round, buffer + bytes - 1, 1, cudaMemcpyDeviceToHost, reader));
      ok(cudaEventRecord(read, reader));
    }
    ok(cudaDeviceSynchronize());
    int wrong = 0;
    for (int round = 0; round < rounds; ++round) {
      wrong += seen[round] != char(round);
    }
    return wrong;
  }
};

TEST_F(StrictStream, RandomDelaysMakeAMissingWaitFail) {
  if (races_are_reported) {
    GTEST_SKIP() << "races on purpose";
  }
  constexpr int rounds = 60;
  const HandOver hand_over{new_stream(),
                           new_stream(),
                           new_event(),
                           new_event(),
                           device_memory<char>(bytes),
                           pinned_memory<char>(rounds)};
  for (uint64_t seed : {1, 2, 3}) {
    change_settings([seed](emulator::Settings& settings) { settings.delay_seed = seed; });
    EXPECT_EQ(hand_over.run(rounds, true), 0) << seed;
    EXPECT_GT(hand_over.run(rounds, false), 0) << seed;
  }
}

TEST_F(StrictStream, DelaysAreTakenFromTheSeed) {
  const auto seconds = [&](uint64_t seed) {
    change_settings([seed](emulator::Settings& settings) {
      settings.delay_seed = seed;
      settings.max_delay_us = 2000;
    });
    cudaStream_t stream = new_stream();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) {
      emulator::submit(stream, [] {});
    }
    ok(cudaStreamSynchronize(stream));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  EXPECT_GT(seconds(1), 0.025);  // about 50 delays of 1 ms
  EXPECT_LT(seconds(0), 0.025);
}

// Drops each of the waits in turn. The writer is held back, so that the reader, once its wait is
// gone, always reads too early.
TEST_F(StrictStream, EachWaitOfARunCanBeDropped) {
  constexpr int sites = 3;
  cudaStream_t writer = new_stream();
  cudaStream_t reader = new_stream();
  cudaEvent_t written = new_event();
  char* buffer = device_memory<char>(bytes);
  char* seen = pinned_memory<char>(sites);
  for (int dropped = -1; dropped < sites; ++dropped) {
    change_settings([dropped](emulator::Settings& settings) { settings.drop_wait = dropped; });
    ok(cudaMemset(buffer, 0, bytes));
    ok(cudaDeviceSynchronize());
    emulator::reset_counters(0);
    for (int site = 0; site < sites; ++site) {
      Gate gate(writer);
      ok(cudaMemsetAsync(buffer, site + 1, bytes, writer));
      ok(cudaEventRecord(written, writer));
      ok(cudaStreamWaitEvent(reader, written));
      ok(cudaMemcpyAsync(seen + site, buffer, 1, cudaMemcpyDeviceToHost, reader));
      if (site == dropped) {
        ok(cudaStreamSynchronize(reader));  // would never end if the wait were there
      }
      gate.open();
      ok(cudaDeviceSynchronize());
      EXPECT_EQ(seen[site], site == dropped ? site : site + 1) << "dropped " << dropped;
    }
    EXPECT_EQ(emulator::counters(0).waits, sites);
  }
}

TEST_F(StrictStream, AWaitIsDroppedOnTheChosenDeviceOnly) {
  change_settings([](emulator::Settings& settings) {
    settings.drop_wait = 0;
    settings.drop_wait_device = 1;
  });
  cudaStream_t writer = new_stream();
  cudaStream_t reader = new_stream();
  cudaEvent_t written = new_event();
  Gate gate(writer);
  ok(cudaEventRecord(written, writer));
  ok(cudaStreamWaitEvent(reader, written));
  EXPECT_EQ(cudaStreamQuery(reader), cudaErrorNotReady);
  gate.open();
  ok(cudaStreamSynchronize(reader));
}

TEST_F(StrictStream, WaitingForAnEventThatWasNeverRecordedIsAnError) {
  cudaStream_t stream = new_stream();
  expect_refused(cudaStreamWaitEvent(stream, new_event()), cudaErrorInvalidResourceHandle);
}

TEST_F(StrictStream, TheDefaultStreamIsAnError) {
  int* device = device_memory<int>(1);
  int* host = pinned_memory<int>(1);
  cudaEvent_t event = new_event();
  ok(cudaEventRecord(event, new_stream()));
  const cudaError_t expected = cudaErrorInvalidResourceHandle;
  expect_refused(cudaMemcpyAsync(device, host, 4, cudaMemcpyHostToDevice, nullptr), expected);
  expect_refused(cudaMemsetAsync(device, 0, 4, nullptr), expected);
  expect_refused(cudaEventRecord(event, nullptr), expected);
  expect_refused(cudaStreamWaitEvent(nullptr, event), expected);
  expect_refused(cudaStreamSynchronize(nullptr), expected);
  expect_refused(cudaStreamQuery(nullptr), expected);
  expect_refused(cudaStreamDestroy(nullptr), expected);
}

TEST_F(StrictStream, SettingsThatAreNotImplementedAreErrors) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  void* pointer = nullptr;
  expect_refused(cudaStreamCreateWithFlags(&stream, 0), cudaErrorInvalidValue);
  expect_refused(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -6),
                 cudaErrorInvalidValue);
  expect_refused(cudaEventCreateWithFlags(&event, 4), cudaErrorInvalidValue);
  expect_refused(cudaHostAlloc(&pointer, 16, 1), cudaErrorInvalidValue);
  cudaEvent_t recorded = new_event();
  ok(cudaEventRecord(recorded, new_stream()));
  expect_refused(cudaStreamWaitEvent(new_stream(), recorded, 1), cudaErrorInvalidValue);
}

TEST_F(StrictStream, AnEventIsRecordedOnItsOwnDeviceOnly) {
  cudaEvent_t event = new_event();
  ok(cudaSetDevice(1));
  cudaStream_t stream = new_stream();
  expect_refused(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  ok(cudaSetDevice(0));
}

// CUDA takes it, and makes a context on the thread's device for it.
TEST_F(StrictStream, AnEventIsQueriedOnItsOwnDeviceOnly) {
  cudaEvent_t event = new_event();
  ok(cudaSetDevice(1));
  expect_refused(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  ok(cudaSetDevice(0));
  ok(cudaEventQuery(event));
}

TEST_F(StrictStream, NothingRunsBeforeWhatTheStreamWaitsFor) {
  cudaStream_t stream = new_stream();
  cudaStream_t other = new_stream();
  cudaEvent_t event = new_event(cudaEventDefault);
  cudaEvent_t after = new_event(cudaEventDefault);
  Gate gate(stream);
  ok(cudaEventRecord(event, stream));
  ok(cudaStreamWaitEvent(other, event));
  ok(cudaEventRecord(after, other));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(after), cudaErrorNotReady);
  float time = 0;
  EXPECT_EQ(cudaEventElapsedTime(&time, event, after), cudaErrorNotReady);
  gate.open();
  ok(cudaEventSynchronize(after));
  ok(cudaEventElapsedTime(&time, event, after));
  EXPECT_GE(time, 0);
}

TEST_F(StrictStream, AFullQueueHoldsTheSubmitterBack) {
  cudaStream_t stream = new_stream();
  Gate gate(stream);
  emulator::Progress submitted;
  constexpr int count = 3000;
  std::thread host([&] {
    for (int i = 0; i < count; ++i) {
      emulator::submit(stream, [] {});
      submitted.raise();
    }
  });
  submitted.wait(1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(submitted.reached(1100));
  gate.open();
  host.join();
  ok(cudaStreamSynchronize(stream));
}

// A watchdog may ask about an event while the thread that records it is stuck.
TEST_F(StrictStream, QueriesDoNotWaitForASubmitterThatAFullQueueHolds) {
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  Gate gate(stream);
  emulator::Progress submitted;
  std::thread host([&] {
    for (int i = 0; i < 1200; ++i) {
      ok(cudaEventRecord(event, stream));
      submitted.raise();
    }
  });
  submitted.wait(1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  gate.open();
  host.join();
  ok(cudaEventSynchronize(event));
}

TEST_F(StrictStream, TurnsRunInTheOrderInWhichTheHostTookThem) {
  cudaStream_t streams[2] = {new_stream(), new_stream()};
  std::vector<int> order;
  Gate gate(streams[0]);
  for (int i = 0; i < 20; ++i) {
    emulator::Turn turn = emulator::take_turn(0);
    emulator::submit(streams[i % 2], [turn, i, &order]() mutable {
      turn.begin();
      order.push_back(i);
      turn.end();
    });
  }
  EXPECT_EQ(cudaStreamQuery(streams[1]), cudaErrorNotReady);
  gate.open();
  ok(cudaDeviceSynchronize());
  ASSERT_EQ(order.size(), 20u);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(order[size_t(i)], i);
  }
}

TEST_F(StrictStream, AnAsynchronousErrorStaysUntilTheEnd) {
  cudaStream_t stream = new_stream();
  emulator::submit(stream, [] { emulator::fail(0, cudaErrorIllegalAddress, "for a test"); });
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  emulator::fail(0, cudaErrorUnknown, "for a test: a later one");
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  std::thread([] {
    ok(cudaSetDevice(1));
    ok(cudaDeviceSynchronize());
  }).join();
  emulator::clear_failure(0);
  ok(cudaDeviceSynchronize());
}

TEST_F(StrictStream, AProcessMayExitWhileAStreamWaitsForEver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        auto* never = new emulator::Progress;
        emulator::submit(stream, [never] { never->wait(1); });
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StrictSettings, VariablesAreReadAtTheFirstCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("PIPETRAIN_EMULATOR_DEVICES", "3", 1);
        setenv("PIPETRAIN_EMULATOR_DROP_WAIT", "-1", 1);
        int devices = 0;
        cudaGetDeviceCount(&devices);
        std::exit(devices);
      },
      testing::ExitedWithCode(3), "");
  for (const char* value : {"x", "0"}) {
    EXPECT_EXIT(
        {
          setenv("PIPETRAIN_EMULATOR_DEVICES", value, 1);
          int devices = 0;
          cudaGetDeviceCount(&devices);
        },
        testing::ExitedWithCode(2), "PIPETRAIN_EMULATOR_DEVICES.*must be a number");
  }
}

TEST_F(StrictStream, RanksMayBeThreadsEachWithItsDevice) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([rank] {
      ok(cudaSetDevice(rank));
      cudaStream_t stream = nullptr;
      ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      EXPECT_EQ(emulator::device_of(stream), rank);
      char* data = nullptr;
      ok(cudaMalloc(&data, 256));
      for (int i = 0; i < 100; ++i) {
        ok(cudaMemsetAsync(data, rank, 256, stream));
      }
      ok(cudaStreamSynchronize(stream));
      char back = -1;
      ok(cudaMemcpy(&back, data + 255, 1, cudaMemcpyDeviceToHost));
      EXPECT_EQ(back, rank);
      ok(cudaStreamDestroy(stream));
      ok(cudaFree(data));
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

}  // namespace
}  // namespace pipetrain::test

#endif
