// What NCCL documents, and what it is used for here. Runs unchanged on GPUs; ranks are processes.

#include <cuda_bf16.h>

#include <cstdint>

#include "nccl_ranks.h"

namespace pipetrain::test {
namespace {

// A value that says who sent it and where it stands; exact in every type but bf16 and int8.
float mark(int rank, size_t i) {
  return float(rank * 100 + int(i % 97));
}

std::vector<float> marks(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = mark(rank, i);
  }
  return values;
}

TEST(NcclConformance, ACommunicatorKnowsItsRanks) {
  in_processes(3, [](Rank& r) {
    int count = 0, rank = -1, device = -1, version = 0;
    ok(ncclCommCount(r.comm(), &count));
    ok(ncclCommUserRank(r.comm(), &rank));
    ok(ncclCommCuDevice(r.comm(), &device));
    ok(ncclGetVersion(&version));
    int current = -1;
    ok(cudaGetDevice(&current));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(rank, r.rank());
    EXPECT_EQ(device, current);
    EXPECT_GE(version, NCCL_VERSION(2, 19, 0));
    ncclResult_t error = ncclInternalError;
    ok(ncclCommGetAsyncError(r.comm(), &error));
    EXPECT_EQ(error, ncclSuccess);
  });
}

TEST(NcclConformance, MessagesArriveInOrderAndWhole) {
  in_processes(2, [](Rank& r) {
    // Several sizes, no size among them; from rank 0 to rank 1.
    for (const size_t count : {size_t(1), size_t(1000), size_t(0), size_t(300000), size_t(7)}) {
      float* buffer = r.on_device(marks(r.rank() == 0 ? int(count % 5) : 9, count + 1));
      if (r.rank() == 0) {
        ok(ncclSend(buffer, count, ncclFloat, 1, r.comm(), r.stream()));
        ok(cudaStreamSynchronize(r.stream()));
      } else {
        ok(ncclRecv(buffer, count, ncclFloat, 0, r.comm(), r.stream()));
        const std::vector<float> got = r.on_host(buffer, count + 1);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(got[i], mark(int(count % 5), i)) << i << " of " << count;
        }
        EXPECT_EQ(got[count], mark(9, count)) << "wrote past the end";
      }
    }
  });
}

TEST(NcclConformance, ARingOfGroupedSendsAndReceivesDoesNotBlock) {
  in_processes(4, [](Rank& r) {
    constexpr size_t count = 1 << 20;
    const float* mine = r.on_device(marks(r.rank(), count));
    float* theirs = r.memory<float>(count);
    for (int round = 0; round < 2; ++round) {
      ok(ncclGroupStart());
      ok(ncclSend(mine, count, ncclFloat, r.next(), r.comm(), r.stream()));
      ok(ncclRecv(theirs, count, ncclFloat, r.previous(), r.comm(), r.stream()));
      ok(ncclGroupEnd());
      EXPECT_EQ(r.on_host(theirs, count), marks(r.previous(), count));
    }
  });
}

TEST(NcclConformance, APairMayExchangeAndARankMaySendToItselfInAGroup) {
  in_processes(2, [](Rank& r) {
    constexpr size_t count = 5000;
    const float* mine = r.on_device(marks(r.rank(), count));
    float* theirs = r.memory<float>(count);
    float* own = r.memory<float>(count);
    ok(ncclGroupStart());
    ok(ncclRecv(theirs, count, ncclFloat, r.next(), r.comm(), r.stream()));
    ok(ncclSend(mine, count, ncclFloat, r.next(), r.comm(), r.stream()));
    ok(ncclSend(mine, count, ncclFloat, r.rank(), r.comm(), r.stream()));
    ok(ncclRecv(own, count, ncclFloat, r.rank(), r.comm(), r.stream()));
    ok(ncclGroupEnd());
    EXPECT_EQ(r.on_host(theirs, count), marks(r.next(), count));
    EXPECT_EQ(r.on_host(own, count), marks(r.rank(), count));
  });
}

TEST(NcclConformance, EveryRankMayExchangeWithEveryOtherInOneGroup) {
  in_processes(4, [](Rank& r) {
    constexpr size_t count = 3000;
    const float* mine = r.on_device(marks(r.rank(), count * size_t(r.ranks())));
    float* theirs = r.memory<float>(count * size_t(r.ranks()));
    ok(ncclGroupStart());
    for (int peer = 0; peer < r.ranks(); ++peer) {
      ok(ncclSend(mine + size_t(peer) * count, count, ncclFloat, peer, r.comm(), r.stream()));
      ok(ncclRecv(theirs + size_t(peer) * count, count, ncclFloat, peer, r.comm(), r.stream()));
    }
    ok(ncclGroupEnd());
    const std::vector<float> got = r.on_host(theirs, count * size_t(r.ranks()));
    for (int peer = 0; peer < r.ranks(); ++peer) {
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(got[size_t(peer) * count + i], mark(peer, size_t(r.rank()) * count + i));
      }
    }
  });
}

template <class T>
void expect_sums(Rank& r, ncclDataType_t type, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = T(float(int(i % 7) + r.rank()));
  }
  const auto sum = [&](size_t i) {
    return float(r.ranks() * int(i % 7) + r.ranks() * (r.ranks() - 1) / 2);
  };
  T* apart = r.memory<T>(count);
  T* in_place = r.on_device(values);
  ok(ncclAllReduce(in_place, apart, count, type, ncclSum, r.comm(), r.stream()));
  ok(ncclAllReduce(in_place, in_place, count, type, ncclSum, r.comm(), r.stream()));
  for (const T* result : {apart, in_place}) {
    const std::vector<T> got = r.on_host(result, count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(float(got[i]), sum(i)) << "type " << type << ", " << i << " of " << count;
    }
  }
}

TEST(NcclConformance, AllReduceSumsEveryType) {
  in_processes(3, [](Rank& r) {
    for (const size_t count : {size_t(1), size_t(2), size_t(1000), size_t(100003)}) {
      expect_sums<float>(r, ncclFloat32, count);
      expect_sums<double>(r, ncclFloat64, count);
      expect_sums<__nv_bfloat16>(r, ncclBfloat16, count);
      expect_sums<int8_t>(r, ncclInt8, count);
      expect_sums<uint8_t>(r, ncclUint8, count);
      expect_sums<int32_t>(r, ncclInt32, count);
      expect_sums<int64_t>(r, ncclInt64, count);
    }
  });
}

TEST(NcclConformance, AllReduceFindsTheMaximum) {
  in_processes(3, [](Rank& r) {
    constexpr size_t count = 100;
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = int(i % 3) == r.rank() ? float(i) : -1000.0f - float(i);
    }
    float* buffer = r.on_device(values);
    ok(ncclAllReduce(buffer, buffer, count, ncclFloat, ncclMax, r.comm(), r.stream()));
    const std::vector<float> got = r.on_host(buffer, count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(got[i], float(i));
    }
  });
}

TEST(NcclConformance, ReduceScatterSumsAndAllGatherPutsTogether) {
  in_processes(4, [](Rank& r) {
    constexpr size_t count = 2000;
    const size_t all = count * size_t(r.ranks()), own = count * size_t(r.rank());
    const std::vector<float> values = marks(r.rank(), all);
    const float* apart = r.on_device(values);
    float* in_place = r.on_device(values);
    float* shard = r.memory<float>(count);
    float* gathered = r.memory<float>(all);
    ok(ncclReduceScatter(apart, shard, count, ncclFloat, ncclSum, r.comm(), r.stream()));
    ok(ncclReduceScatter(in_place, in_place + own, count, ncclFloat, ncclSum, r.comm(),
                         r.stream()));
    ok(ncclAllGather(shard, gathered, count, ncclFloat, r.comm(), r.stream()));
    ok(ncclAllGather(in_place + own, in_place, count, ncclFloat, r.comm(), r.stream()));
    for (const float* result :
         {static_cast<const float*>(gathered), static_cast<const float*>(in_place)}) {
      const std::vector<float> got = r.on_host(result, all);
      for (size_t i = 0; i < all; ++i) {
        float sum = 0;
        for (int rank = 0; rank < r.ranks(); ++rank) {
          sum += mark(rank, i);
        }
        ASSERT_EQ(got[i], sum) << i;
      }
    }
  });
}

TEST(NcclConformance, BroadcastCopiesFromAnyRoot) {
  in_processes(3, [](Rank& r) {
    constexpr size_t count = 10000;
    for (int root = 0; root < r.ranks(); ++root) {
      float* in_place = r.on_device(marks(r.rank(), count));
      float* apart = r.memory<float>(count);
      ok(ncclBroadcast(in_place, apart, count, ncclFloat, root, r.comm(), r.stream()));
      ok(ncclBroadcast(in_place, in_place, count, ncclFloat, root, r.comm(), r.stream()));
      EXPECT_EQ(r.on_host(apart, count), marks(root, count));
      EXPECT_EQ(r.on_host(in_place, count), marks(root, count));
    }
  });
}

TEST(NcclConformance, SplittingOrdersRanksByKeyAndLeavesOutThoseWithoutColour) {
  in_processes(4, [](Rank& r) {
    // Ranks 0, 2, 3 in reverse order; rank 1 is left out.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = 8;
    ncclComm_t part = nullptr;
    ok(ncclCommSplit(r.comm(), r.rank() == 1 ? NCCL_SPLIT_NOCOLOR : 7, -r.rank(), &part, &config));
    if (r.rank() == 1) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    int count = 0, rank = -1;
    ok(ncclCommCount(part, &count));
    ok(ncclCommUserRank(part, &rank));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(rank, r.rank() == 3 ? 0 : r.rank() == 2 ? 1 : 2);
    float* gathered = r.memory<float>(3);
    const float* mine = r.on_device(marks(r.rank(), 1));
    ok(ncclAllGather(mine, gathered, 1, ncclFloat, part, r.stream()));
    EXPECT_EQ(r.on_host(gathered, 3), (std::vector<float>{mark(3, 0), mark(2, 0), mark(0, 0)}));
    ok(ncclCommDestroy(part));
  });
}

TEST(NcclConformance, TwoCommunicatorsOfOnePairDoNotMixTheirMessages) {
  in_processes(2, [](Rank& r) {
    ncclComm_t other = nullptr;
    ok(ncclCommSplit(r.comm(), 0, r.rank(), &other, nullptr));
    constexpr size_t count = 1000;
    const cudaStream_t second = r.new_stream();
    float* a = r.on_device(marks(1 + r.rank(), count));
    float* b = r.on_device(marks(5 + r.rank(), count));
    // Rank 0 sends a, then b; rank 1 has its receives on two streams.
    if (r.rank() == 0) {
      ok(ncclSend(a, count, ncclFloat, 1, r.comm(), r.stream()));
      ok(ncclSend(b, count, ncclFloat, 1, other, second));
    } else {
      ok(ncclRecv(a, count, ncclFloat, 0, r.comm(), r.stream()));
      ok(ncclRecv(b, count, ncclFloat, 0, other, second));
    }
    ok(cudaStreamSynchronize(second));
    EXPECT_EQ(r.on_host(a, count), marks(1, count));
    EXPECT_EQ(r.on_host(b, count), marks(5, count));
    ok(ncclCommDestroy(other));
  });
}

TEST(NcclConformance, WrongArgumentsAreRefused) {
  in_processes(2, [](Rank& r) {
    float* buffer = r.memory<float>(4);
    EXPECT_EQ(ncclSend(buffer, 4, ncclFloat, 2, r.comm(), r.stream()), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(buffer, 4, ncclFloat, 0, nullptr, r.stream()), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(buffer, buffer, 4, ncclFloat, -1, r.comm(), r.stream()),
              ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetErrorString(ncclInvalidArgument)), "");
    EXPECT_NE(std::string(ncclGetLastError(r.comm())), "");
  });
}

}  // namespace
}  // namespace pipetrain::test
