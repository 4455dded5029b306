// Where the emulator is stricter than NCCL, and what only the emulator promises. Ranks are threads,
// but for a few that must be processes.

#ifdef PIPETRAIN_HOST

#include <unistd.h>

#include <atomic>
#include <latch>

#include "emulator_settings.h"
#include "nccl_ranks.h"

namespace pipetrain::test {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds a_while(50);
constexpr milliseconds long_enough(20000);

void exchange_once(Rank& r, ncclComm_t comm, float* buffer, size_t count) {
  if (r.rank() == 0) {
    ok(ncclSend(buffer, count, ncclFloat, 1, comm, r.stream()));
  } else {
    ok(ncclRecv(buffer, count, ncclFloat, 0, comm, r.stream()));
  }
  ok(cudaStreamSynchronize(r.stream()));
}

// ---- rendezvous
TEST(NcclStrict, TheSmallestSendWaitsForItsReceive) {
  for (const size_t count : {size_t(0), size_t(1)}) {
    std::latch may_receive(1);
    in_threads(2, [&](Rank& r) {
      float* buffer = r.memory<float>(1);
      exchange_once(r, r.comm(), buffer, 1);
      if (r.rank() == 0) {
        ok(ncclSend(buffer, count, ncclFloat, 1, r.comm(), r.stream()));
        EXPECT_FALSE(r.finishes(a_while));
        may_receive.count_down();
        EXPECT_TRUE(r.finishes(long_enough));
      } else {
        may_receive.wait();
        ok(ncclRecv(buffer, count, ncclFloat, 0, r.comm(), r.stream()));
        EXPECT_TRUE(r.finishes(long_enough));
      }
    });
  }
}

TEST(NcclStrict, TheFirstUseOfADirectionBlocksTheHostUntilThePeerUsesItToo) {
  std::atomic<bool> received{false}, answered{false};
  in_threads(2, [&](Rank& r) {
    float* buffer = r.memory<float>(1);
    if (r.rank() == 0) {
      ok(ncclSend(buffer, 1, ncclFloat, 1, r.comm(), r.stream()));
      EXPECT_TRUE(received.load());
      answered = true;
      ok(ncclRecv(buffer, 1, ncclFloat, 1, r.comm(), r.stream()));
    } else {
      std::this_thread::sleep_for(a_while);
      received = true;
      ok(ncclRecv(buffer, 1, ncclFloat, 0, r.comm(), r.stream()));
      std::this_thread::sleep_for(a_while);
      EXPECT_TRUE(answered.load());
      ok(ncclSend(buffer, 1, ncclFloat, 0, r.comm(), r.stream()));
    }
  });
}

TEST(NcclStrict, TheFirstCollectiveOperationBlocksTheHostUntilAllCallIt) {
  std::atomic<bool> last_one_called{false};
  in_threads(3, [&](Rank& r) {
    float* buffer = r.on_device(std::vector<float>{1});
    if (r.rank() == 2) {
      std::this_thread::sleep_for(a_while);
      last_one_called = true;
    }
    ok(ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, r.comm(), r.stream()));
    EXPECT_TRUE(last_one_called.load());
  });
}

// Rank 0 receives from rank 1 on one stream and communicator, then sends to rank 2 on another
// stream: does the send wait for the receive? `second` makes the communicator of the send.
void expect_serialised(bool serialised, const std::function<ncclComm_t(Rank&)>& second) {
  std::latch rank_1_may_send(1);
  in_threads(3, [&](Rank& r) {
    float* buffer = r.memory<float>(2);
    const ncclComm_t other_comm = second(r);
    const cudaStream_t other = r.new_stream();
    const auto pass = [&](int from, int to, ncclComm_t comm, cudaStream_t stream, float* at) {
      if (r.rank() == from) {
        ok(ncclSend(at, 1, ncclFloat, to, comm, stream));
      } else if (r.rank() == to) {
        ok(ncclRecv(at, 1, ncclFloat, from, comm, stream));
      }
    };
    pass(1, 0, r.comm(), r.stream(), buffer);
    pass(0, 2, other_comm, r.stream(), buffer);
    ok(cudaStreamSynchronize(r.stream()));
    if (r.rank() == 1) {
      rank_1_may_send.wait();
    }
    pass(1, 0, r.comm(), other, buffer);
    pass(0, 2, other_comm, r.stream(), buffer + 1);
    if (r.rank() == 2) {
      EXPECT_EQ(r.finishes(serialised ? a_while : long_enough), !serialised);
      rank_1_may_send.count_down();
      EXPECT_TRUE(r.finishes(long_enough));
    }
    ok(cudaStreamSynchronize(r.stream()));
    ok(cudaStreamSynchronize(other));
    if (other_comm != r.comm()) {
      ok(ncclCommDestroy(other_comm));
    }
  });
}

ncclComm_t split_off(Rank& r, int share) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = share;
  ncclComm_t child = nullptr;
  ok(ncclCommSplit(r.comm(), 0, r.rank(), &child, &config));
  return child;
}

TEST(NcclStrict, OperationsOfOneCommunicatorAreSerialisedOverStreams) {
  expect_serialised(true, [](Rank& r) { return r.comm(); });
}

TEST(NcclStrict, OperationsOfTwoCommunicatorsAreSerialisedOnlyWhenTheyShare) {
  expect_serialised(false, [](Rank& r) { return split_off(r, 0); });
  expect_serialised(true, [](Rank& r) { return split_off(r, 1); });
}

TEST(NcclStrict, GroupedSendsMeetSingleReceivesInOrder) {
  constexpr int messages = 20;
  in_threads(2, [&](Rank& r) {
    std::vector<float> values(messages);
    for (int i = 0; i < messages; ++i) {
      values[size_t(i)] = r.rank() == 0 ? float(i) : -1;
    }
    float* buffer = r.on_device(values);
    if (r.rank() == 0) {
      ok(ncclGroupStart());
      for (int i = 0; i < messages; ++i) {
        ok(ncclSend(buffer + i, 1, ncclFloat, 1, r.comm(), r.stream()));
      }
      ok(ncclGroupEnd());
    } else {
      for (int i = 0; i < messages; ++i) {
        ok(ncclRecv(buffer + i, 1, ncclFloat, 0, r.comm(), r.stream()));
      }
      const std::vector<float> got = r.on_host(buffer, messages);
      for (int i = 0; i < messages; ++i) {
        EXPECT_EQ(got[size_t(i)], float(i));
      }
    }
  });
}

void exchange_large(Rank& r) {
#ifdef PIPETRAIN_SANITIZE
  constexpr size_t bytes = size_t(4) << 20;
#else
  constexpr size_t bytes = size_t(64) << 20;
#endif
  char* send = r.memory<char>(bytes);
  char* receive = r.memory<char>(bytes);
  ok(cudaMemsetAsync(send, 17 + r.rank(), bytes, r.stream()));
  ok(ncclGroupStart());
  ok(ncclSend(send, bytes, ncclInt8, r.next(), r.comm(), r.stream()));
  ok(ncclRecv(receive, bytes, ncclInt8, r.previous(), r.comm(), r.stream()));
  ok(ncclGroupEnd());
  const std::vector<char> got = r.on_host(receive, bytes);
  EXPECT_EQ(got, std::vector<char>(bytes, char(17 + r.previous())));
}
TEST(NcclStrict, LargeMessagesPassBetweenThreads) {
  in_threads(2, exchange_large);
}
TEST(NcclStrict, LargeMessagesPassBetweenProcesses) {
  in_processes(2, exchange_large);
}

// ---- mismatches are errors on both ends
using Call = std::function<void(Rank& r, float* buffer)>;

void expect_error(Rank& r, const Call& call) {
  float* buffer = r.memory<float>(64);
  exchange_once(r, r.comm(), buffer, 1);
  float* sum = r.on_device(std::vector<float>{1});
  ok(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, r.comm(), r.stream()));
  ok(cudaStreamSynchronize(r.stream()));
  call(r, buffer);
  EXPECT_NE(cudaStreamSynchronize(r.stream()), cudaSuccess);
  ncclResult_t error = ncclSuccess;
  ok(ncclCommGetAsyncError(r.comm(), &error));
  EXPECT_EQ(error, ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(r.comm())).find("and the other end"), std::string::npos);
  EXPECT_EQ(ncclSend(buffer, 1, ncclFloat, 0, r.comm(), r.stream()), ncclInvalidUsage);
  // The device keeps its error, so nothing more can be done in this process.
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(NcclStrict, AnUnequalCountIsAnErrorOnBothEnds) {
  in_processes(2, [](Rank& r) {
    expect_error(r, [](Rank& rank, float* buffer) {
      if (rank.rank() == 0) {
        ok(ncclSend(buffer, 4, ncclFloat, 1, rank.comm(), rank.stream()));
      } else {
        ok(ncclRecv(buffer, 5, ncclFloat, 0, rank.comm(), rank.stream()));
      }
    });
  });
}

TEST(NcclStrict, AnUnequalTypeIsAnErrorOnBothEndsEvenWithEqualBytes) {
  in_processes(2, [](Rank& r) {
    expect_error(r, [](Rank& rank, float* buffer) {
      if (rank.rank() == 0) {
        ok(ncclSend(buffer, 4, ncclFloat, 1, rank.comm(), rank.stream()));
      } else {
        ok(ncclRecv(buffer, 4, ncclInt32, 0, rank.comm(), rank.stream()));
      }
    });
  });
}

TEST(NcclStrict, UnequalCollectiveOperationsAreErrors) {
  in_processes(2, [](Rank& r) {
    expect_error(r, [](Rank& rank, float* buffer) {
      const ncclRedOp_t op = rank.rank() == 0 ? ncclSum : ncclMax;
      ok(ncclAllReduce(buffer, buffer, 64, ncclFloat, op, rank.comm(), rank.stream()));
    });
  });
}

TEST(NcclStrict, MismatchesBetweenThreadsAreErrorsOnBothEnds) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto mismatch = [] {
    in_threads(2, [](Rank& r) {
      float* buffer = r.memory<float>(8);
      exchange_once(r, r.comm(), buffer, 1);
      if (r.rank() == 0) {
        ok(ncclSend(buffer, 4, ncclFloat, 1, r.comm(), r.stream()));
      } else {
        ok(ncclRecv(buffer, 5, ncclFloat, 0, r.comm(), r.stream()));
      }
      EXPECT_NE(cudaStreamSynchronize(r.stream()), cudaSuccess);
      ncclResult_t error = ncclSuccess;
      ok(ncclCommGetAsyncError(r.comm(), &error));
      EXPECT_EQ(error, ncclInvalidUsage);
      static std::latch both(2);
      both.arrive_and_wait();
      std::_Exit(testing::Test::HasFailure() ? 1 : 0);
    });
  };
  EXPECT_EXIT(mismatch(), testing::ExitedWithCode(0), "4 x float32");
}

// ---- dead peers
TEST(NcclStrict, ADeadPeerIsNeverReported) {
  in_processes(2, [](Rank& r) {
    float* buffer = r.memory<float>(1);
    exchange_once(r, r.comm(), buffer, 1);
    if (r.rank() == 1) {
      std::_Exit(0);
    }
    ok(ncclSend(buffer, 1, ncclFloat, 1, r.comm(), r.stream()));
    EXPECT_FALSE(r.finishes(milliseconds(300)));
    ncclResult_t error = ncclInternalError;
    ok(ncclCommGetAsyncError(r.comm(), &error));
    EXPECT_EQ(error, ncclSuccess);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  });
}

// ---- one operation at a time
TEST(NcclStrict, OneAtATimeRunsTheOperationsOfADeviceInHostOrder) {
  for (const bool one_at_a_time : {false, true}) {
    const WithSettings with(
        [&](emulator::Settings& settings) { settings.one_at_a_time = one_at_a_time; });
    std::latch rank_0_may_send(1);
    in_threads(3, [&](Rank& r) {
      ncclComm_t second = nullptr;
      ok(ncclCommSplit(r.comm(), 0, r.rank(), &second, nullptr));
      float* buffer = r.memory<float>(2);
      const cudaStream_t other = r.new_stream();
      const auto from_0 = [&] {
        if (r.rank() == 0) {
          ok(ncclSend(buffer, 1, ncclFloat, 1, r.comm(), other));
        } else if (r.rank() == 1) {
          ok(ncclRecv(buffer, 1, ncclFloat, 0, r.comm(), other));
        }
      };
      const auto from_2 = [&] {
        if (r.rank() == 2) {
          ok(ncclSend(buffer, 1, ncclFloat, 1, second, r.stream()));
        } else if (r.rank() == 1) {
          ok(ncclRecv(buffer + 1, 1, ncclFloat, 2, second, r.stream()));
        }
      };
      from_0();
      from_2();
      // Rank 1 receives from rank 0, which waits, and on another stream and communicator from
      // rank 2, which does not.
      if (r.rank() == 0) {
        rank_0_may_send.wait();
      }
      from_0();
      from_2();
      if (r.rank() == 1) {
        EXPECT_EQ(r.finishes(one_at_a_time ? a_while : long_enough), !one_at_a_time);
        rank_0_may_send.count_down();
        EXPECT_TRUE(r.finishes(long_enough));
      }
      ok(cudaStreamSynchronize(other));
      ok(cudaStreamSynchronize(r.stream()));
      ok(ncclCommDestroy(second));
    });
  }
}

}  // namespace
}  // namespace pipetrain::test

#endif  // PIPETRAIN_HOST
