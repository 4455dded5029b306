#include "pipetrain/comm/communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "pipetrain/comm/warm_up.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/error.h"
#include "ranks.h"

namespace pipetrain {
namespace {

constexpr int max_ctas = 8;

std::vector<int> all_ranks(const Control& control) {
  std::vector<int> ranks(static_cast<size_t>(control.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> data(values.size() * sizeof(float));
  std::memcpy(data.data(), values.data(), data.size());
  return data;
}

std::vector<float> floats_at(const std::byte* data, size_t count) {
  std::vector<float> values(count);
  std::memcpy(values.data(), copy_to_host(data, count * sizeof(float)).data(),
              count * sizeof(float));
  return values;
}

// Small whole numbers: every order of adding them gives the same float.
float value(int rank, size_t i) {
  return float((rank + 1) * int(i % 1000 + 1));
}

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = value(rank, i);
  }
  return values;
}

class Communicators : public testing::TestWithParam<int> {};

TEST_P(Communicators, AllReduceSumsOverAllRanks) {
  run_ranks(GetParam(), [](Control& control) {
    constexpr size_t count = 10'001;
    Communicator communicator(control, all_ranks(control), max_ctas);
    EXPECT_EQ(communicator.rank(), control.rank());
    EXPECT_EQ(communicator.size(), control.size());
    const Stream stream;
    const Buffer buffer(count * sizeof(float));
    copy_to_device(buffer.data(), bytes_of(values_of(control.rank(), count)));
    communicator.all_reduce_sum(buffer.data(), count, ncclFloat32, stream);
    stream.synchronize();
    const std::vector<float> sum = floats_at(buffer.data(), count);
    const int p = control.size();
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(sum[i], float(p * (p + 1) / 2 * int(i % 1000 + 1)));
    }
  });
}

TEST_P(Communicators, ReduceScatterThenAllGatherEqualsAllReduce) {
  run_ranks(GetParam(), [](Control& control) {
    constexpr size_t part = 3000;
    const size_t count = part * size_t(control.size());
    Communicator communicator(control, all_ranks(control), max_ctas);
    const Stream stream;
    const Buffer data(count * sizeof(float));
    const Buffer sum(part * sizeof(float));
    const Buffer gathered(count * sizeof(float));
    const Buffer reduced(count * sizeof(float));
    copy_to_device(data.data(), bytes_of(values_of(control.rank(), count)));
    copy_to_device(reduced.data(), bytes_of(values_of(control.rank(), count)));
    communicator.reduce_scatter_sum(sum.data(), data.data(), part, ncclFloat32, stream);
    communicator.all_gather(gathered.data(), sum.data(), part * sizeof(float), stream);
    communicator.all_reduce_sum(reduced.data(), count, ncclFloat32, stream);
    stream.synchronize();
    EXPECT_EQ(floats_at(gathered.data(), count), floats_at(reduced.data(), count));
    EXPECT_EQ(floats_at(data.data(), count), values_of(control.rank(), count));
  });
}

TEST_P(Communicators, BroadcastReachesEveryRankFromEveryRoot) {
  run_ranks(GetParam(), [](Control& control) {
    constexpr size_t bytes = 5001;
    Communicator communicator(control, all_ranks(control), max_ctas);
    const Stream stream;
    const Buffer buffer(bytes);
    for (int root = 0; root < control.size(); ++root) {
      copy_to_device(buffer.data(), message(control.rank(), 0, root, bytes));
      communicator.broadcast(buffer.data(), bytes, root, stream);
      stream.synchronize();
      EXPECT_EQ(copy_to_host(buffer.data(), bytes), message(root, 0, root, bytes));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Communicators, testing::Values(1, 2, 3, 8));

// Pipelines and replicas side by side: every rank is in two communicators, made in one order.
TEST(Communicator, OfPartOfTheJobNumbersItsMembersByTheirPlace) {
  run_ranks(6, [](Control& control) {
    const int column = control.rank() % 2;
    const int row = control.rank() / 2;
    Communicator pipeline(control, {column, column + 2, column + 4}, max_ctas);
    Communicator replicas(control, {2 * row, 2 * row + 1}, max_ctas);
    EXPECT_EQ(pipeline.rank(), row);
    EXPECT_EQ(replicas.rank(), column);
    const Stream stream;
    const Buffer all(3 * 64);
    copy_to_device(all.data() + row * 64, message(control.rank(), 1, 0, 64));
    pipeline.all_gather(all.data(), all.data() + row * 64, 64, stream);
    stream.synchronize();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(copy_to_host(all.data() + i * 64, 64), message(2 * i + column, 1, 0, 64));
    }
  });
}

TEST(Communicator, WarmUpLeavesItUsable) {
  run_ranks(3, [](Control& control) {
    constexpr size_t bytes = 1 << 16;
    Communicator communicator(control, all_ranks(control), max_ctas);
    const Stream stream;
    const Buffer buffer(3 * bytes);
    std::byte* const own = buffer.data() + size_t(control.rank()) * bytes;
    warm_up(communicator, buffer.data(), bytes, stream);
    copy_to_device(own, message(control.rank(), 0, 0, bytes));
    communicator.all_gather(buffer.data(), own, bytes, stream);
    stream.synchronize();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(copy_to_host(buffer.data() + size_t(rank) * bytes, bytes),
                message(rank, 0, 0, bytes));
    }
    EXPECT_EQ(communicator.async_error(), ncclSuccess);
  });
}

TEST(Communicator, MovingKeepsItAndDestroysItOnce) {
  run_ranks(2, [](Control& control) {
    Communicator communicator(control, {0, 1}, max_ctas);
    const Communicator moved = std::move(communicator);
    EXPECT_EQ(communicator.get(), nullptr);
    EXPECT_EQ(moved.rank(), control.rank());
  });
}

TEST(Communicator, ARankThatIsNoMemberMayNotCreateIt) {
  ThreadGroup group(3);
  EXPECT_THROW(Communicator(group.control(2), {0, 1}, max_ctas), InternalError);
}

TEST(Communicator, ErrorsNameTheCallAndALostPeerIsTold) {
  try {
    check(ncclInvalidUsage, "ncclSomething");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("ncclSomething"), std::string::npos) << error.what();
  }
  EXPECT_THROW(check(ncclRemoteError, "ncclSomething"), PeerLost);
  EXPECT_NO_THROW(check(ncclSuccess, "ncclSomething"));
  EXPECT_GE(nccl_version(), 21900);
}

}  // namespace
}  // namespace pipetrain
