// Making communicators in the emulator, and what its links and sums promise. Ranks are threads.

#ifdef PIPETRAIN_HOST

#include <cstring>

#include "emulator/nccl_bootstrap.h"
#include "emulator_settings.h"
#include "nccl_ranks.h"

namespace pipetrain::test {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---- communicators
TEST(NcclCommunicators, ManyAreMadeAtOnceAndOneAfterAnother) {
  constexpr int ranks = 8, at_once = 3, rounds = 3;
  for (int round = 0; round < rounds; ++round) {
    ncclUniqueId ids[at_once];
    for (ncclUniqueId& id : ids) {
      ok(ncclGetUniqueId(&id));
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < at_once; ++i) {
      for (int number = 0; number < ranks; ++number) {
        threads.emplace_back([&, i, number] {
          Rank r((number + i) % ranks, ranks, number, ids[i]);
          float* sum = r.on_device(std::vector<float>{float(i), 1});
          ok(ncclAllReduce(sum, sum, 2, ncclFloat, ncclSum, r.comm(), r.stream()));
          EXPECT_EQ(r.on_host(sum, 2), (std::vector<float>{float(ranks * i), float(ranks)}));
        });
      }
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

TEST(NcclCommunicators, ARingOfPairsIsMadeInRounds) {
  in_threads(4, [](Rank& r) {
    float* value = r.on_device(std::vector<float>{float(r.rank()), -1});
    for (int round = 0; round < 2; ++round) {
      // Round 0: pairs (0, 1), (2, 3); round 1: pairs (1, 2), (3, 0).
      const int first = (r.rank() + 4 - round) % 4 / 2 * 2 + round;
      const bool is_first = r.rank() == first;
      ncclComm_t pair = nullptr;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.maxCTAs = 8;
      ok(ncclCommSplit(r.comm(), first, is_first ? 0 : 1, &pair, &config));
      ok(ncclGroupStart());
      ok(ncclSend(value, 1, ncclFloat, is_first ? 1 : 0, pair, r.stream()));
      ok(ncclRecv(value + 1, 1, ncclFloat, is_first ? 1 : 0, pair, r.stream()));
      ok(ncclGroupEnd());
      EXPECT_EQ(r.on_host(value, 2)[1], float(is_first ? (first + 1) % 4 : first));
      ok(ncclCommDestroy(pair));
    }
  });
}

TEST(NcclCommunicators, TwoRanksOfAProcessOnOneDeviceAreRefused) {
  ncclUniqueId id{};
  ok(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ok(cudaSetDevice(0));
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
      EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("Duplicate GPU"), std::string::npos);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(NcclCommunicators, RanksThatDisagreeAboutTheirNumberAreRefused) {
  ncclUniqueId id{};
  ok(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ok(cudaSetDevice(rank));
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRank(&comm, 2 + rank, id, rank), ncclInvalidUsage);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(NcclCommunicators, AnIdThatNcclDidNotMakeIsRefused) {
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclInvalidArgument);
}

TEST(NcclCommunicators, AConnectionWithoutTheSecretIsDropped) {
  namespace nccl = emulator::nccl;
  ncclUniqueId id{};
  ok(ncclGetUniqueId(&id));
  const nccl::IdContents contents = nccl::contents_of(id);
  nccl::Greeting greeting;
  std::memcpy(greeting.secret, contents.secret, sizeof greeting.secret);
  greeting.secret[0] ^= 1;
  const nccl::Socket intruder = nccl::connect_to(contents.address, greeting);
  char byte = 0;
  EXPECT_FALSE(intruder.read_all(&byte, 1));
  Rank r(0, 1, 0, id);  // not disturbed
  EXPECT_NE(r.comm(), nullptr);
}

TEST(NcclCommunicators, SettingsThatAreNotImplementedAreRefused) {
  ncclUniqueId id{};
  ok(ncclGetUniqueId(&id));
  const auto with = [&](const std::function<void(ncclConfig_t&)>& change) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    change(config);
    ncclComm_t comm = nullptr;
    return ncclCommInitRankConfig(&comm, 1, id, 0, &config);
  };
  EXPECT_EQ(with([](ncclConfig_t& config) { config.blocking = 0; }), ncclInvalidArgument);
  EXPECT_EQ(with([](ncclConfig_t& config) { config.maxCTAs = 0; }), ncclInvalidArgument);
  EXPECT_EQ(with([](ncclConfig_t& config) { config.minCTAs = 9, config.maxCTAs = 8; }),
            ncclInvalidArgument);
  EXPECT_EQ(with([](ncclConfig_t& config) { config.magic = 0; }), ncclInvalidArgument);
  Rank r(0, 1, 0, id);
  EXPECT_NE(r.comm(), nullptr);
}

// ---- calls
TEST(NcclCommunicators, BuffersAndStreamsMustBelongToTheDevice) {
  in_threads(2, [](Rank& r) {
    float* buffer = r.memory<float>(4);
    float on_host = 0;
    EXPECT_EQ(ncclSend(&on_host, 1, ncclFloat, r.next(), r.comm(), r.stream()),
              ncclInvalidArgument);
    EXPECT_EQ(ncclSend(buffer, 1000, ncclFloat, r.next(), r.comm(), r.stream()),
              ncclInvalidArgument);
    EXPECT_EQ(ncclSend(buffer, SIZE_MAX / 2, ncclFloat, r.next(), r.comm(), r.stream()),
              ncclInvalidArgument);
    EXPECT_EQ(ncclSend(buffer, 1, ncclFloat, r.next(), r.comm(), nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(buffer, buffer + 1, 2, ncclFloat, ncclSum, r.comm(), r.stream()),
              ncclInvalidUsage)
        << "overlapping, but not in place";
    EXPECT_EQ(ncclSend(buffer, 1, ncclFloat, r.rank(), r.comm(), r.stream()), ncclInvalidUsage)
        << "to itself without a receive";
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  });
}

TEST(NcclCommunicators, AGroupWithAWrongCallStartsNothing) {
  in_threads(2, [](Rank& r) {
    float* buffer = r.memory<float>(1);
    ok(ncclGroupStart());
    ok(ncclSend(buffer, 1, ncclFloat, r.next(), r.comm(), r.stream()));
    EXPECT_EQ(ncclRecv(buffer, 1, ncclFloat, 5, r.comm(), r.stream()), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    ok(cudaStreamSynchronize(r.stream()));  // a started send would wait for ever
  });
}

// ---- sums
TEST(NcclCommunicators, SumsAreFormedInRankOrder) {
  in_threads(4, [](Rank& r) {
    const std::vector<float> values = {1e8f, 1.0f, -1e8f, 1.0f};
    constexpr size_t count = 4000;
    const float* mine = r.on_device(std::vector<float>(count, values[size_t(r.rank())]));
    float* sum = r.memory<float>(count);
    float* shard = r.memory<float>(count / 4);
    ok(ncclAllReduce(mine, sum, count, ncclFloat, ncclSum, r.comm(), r.stream()));
    ok(ncclReduceScatter(mine, shard, count / 4, ncclFloat, ncclSum, r.comm(), r.stream()));
    const float expected = ((values[0] + values[1]) + values[2]) + values[3];
    EXPECT_EQ(r.on_host(sum, count), std::vector<float>(count, expected));
    EXPECT_EQ(r.on_host(shard, count / 4), std::vector<float>(count / 4, expected));
  });
}

TEST(NcclCommunicators, LargeReductionsAreDoneInPieces) {
  in_threads(3, [](Rank& r) {
    constexpr size_t count = (size_t(20) << 20) / sizeof(float) + 3;  // more than one piece
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = float(i % 1000);
    }
    float* buffer = r.on_device(values);
    ok(ncclAllReduce(buffer, buffer, count, ncclFloat, ncclSum, r.comm(), r.stream()));
    for (float& value : values) {
      value *= 3;
    }
    EXPECT_EQ(r.on_host(buffer, count), values);
  });
}

// ---- links
double seconds_for(int messages, size_t bytes) {
  double seconds = 0;
  in_threads(2, [&](Rank& r) {
    char* buffer = r.memory<char>(bytes);
    for (int i = 0; i <= messages; ++i) {
      const auto start = std::chrono::steady_clock::now();
      if (r.rank() == 0) {
        ok(ncclSend(buffer, bytes, ncclInt8, 1, r.comm(), r.stream()));
      } else {
        ok(ncclRecv(buffer, bytes, ncclInt8, 0, r.comm(), r.stream()));
      }
      ok(cudaStreamSynchronize(r.stream()));
      if (r.rank() == 0 && i > 0) {  // the first one connects
        seconds += seconds_since(start);
      }
    }
  });
  return seconds;
}

TEST(NcclCommunicators, AMessageTakesTheLatencyOfItsLink) {
  const WithSettings with([](emulator::Settings& settings) { settings.link_latency_us = 20000; });
  const double seconds = seconds_for(3, 8);
  EXPECT_GE(seconds, 0.06);
  EXPECT_LT(seconds, 1);
}

TEST(NcclCommunicators, AMessageTakesTheTimeOfItsBytes) {
  const WithSettings with([](emulator::Settings& settings) { settings.link_bytes_per_us = 50; });
  const double seconds = seconds_for(2, 1000000);
  EXPECT_GE(seconds, 0.04);
  EXPECT_LT(seconds, 1);
}

TEST(NcclCommunicators, MessagesOfTwoCommunicatorsShareTheBandwidthOfALinkButNotTheLatency) {
  const WithSettings with([](emulator::Settings& settings) {
    settings.link_latency_us = 300000;
    settings.link_bytes_per_us = 10;
  });
  in_threads(2, [](Rank& r) {
    ncclComm_t second = nullptr;
    ok(ncclCommSplit(r.comm(), 0, r.rank(), &second, nullptr));
    const cudaStream_t other = r.new_stream();
    constexpr size_t bytes = 1000000;  // 0.1 s
    char* buffer = r.memory<char>(2 * bytes);
    const auto pass = [&](size_t count) {
      for (const auto& [comm, stream, at] :
           {std::tuple(r.comm(), r.stream(), buffer), std::tuple(second, other, buffer + bytes)}) {
        if (r.rank() == 0) {
          ok(ncclSend(at, count, ncclInt8, 1, comm, stream));
        } else {
          ok(ncclRecv(at, count, ncclInt8, 0, comm, stream));
        }
      }
      ok(cudaStreamSynchronize(r.stream()));
      ok(cudaStreamSynchronize(other));
    };
    pass(0);
    const auto start = std::chrono::steady_clock::now();
    pass(bytes);
    EXPECT_GE(seconds_since(start), 0.5);
    EXPECT_LT(seconds_since(start), 0.75);
    ok(ncclCommDestroy(second));
  });
}

}  // namespace
}  // namespace pipetrain::test

#endif  // PIPETRAIN_HOST
