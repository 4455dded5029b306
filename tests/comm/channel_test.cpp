#include "pipetrain/comm/channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "pipetrain/comm/warm_up.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/error.h"
#include "ranks.h"
#include "ring.h"

namespace pipetrain {
namespace {

constexpr size_t mib = 1 << 20;

// Larger than any buffer inside NCCL. The emulator has none, and sanitizers are slow.
#ifdef PIPETRAIN_SANITIZE
constexpr size_t large = mib / 4 + 3;
#else
constexpr size_t large = 5 * mib + 3;
#endif

class Rings : public testing::TestWithParam<int> {};

// Fault 2: with two ranks the next one is the previous one, and what goes forward and backward may
// be swapped.
TEST_P(Rings, ForwardAndBackwardMessagesArriveInOrderAndApart) {
  run_ranks(GetParam(), [](Control& control) {
    EXPECT_EQ(check_ring_of_channels(control, {.bytes = 4096, .messages = 6}), "");
  });
}

// Fault 3: an exchange passes with small messages and hangs with large ones.
TEST_P(Rings, LargeMessagesDoNotHang) {
  run_ranks(GetParam(), [](Control& control) {
    EXPECT_EQ(check_ring_of_channels(control, {.bytes = large, .messages = 1}), "");
  });
}

TEST_P(Rings, OneSharedStreamCarriesAllChannelsOfARank) {
  run_ranks(GetParam(), [](Control& control) {
    EXPECT_EQ(check_ring_of_channels(
                  control, {.bytes = 100'000, .messages = 3, .one_stream_per_rank = true}),
              "");
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Rings, testing::Values(2, 3, 4, 8));

TEST(Channel, AMessageOfNoBytesIsMatchedToo) {
  run_ranks(2, [](Control& control) {
    EXPECT_EQ(check_ring_of_channels(control, {.bytes = 0, .messages = 2}), "");
  });
}

TEST(Channel, TheWrongEndThrows) {
  run_ranks(2, [](Control& control) {
    Channel channel(control, 1, 0);
    const Buffer buffer(16);
    EXPECT_EQ(channel.is_source(), control.rank() == 1);
    EXPECT_EQ(channel.peer(), 1 - control.rank());
    if (channel.is_source()) {
      EXPECT_THROW(channel.receive(buffer.data(), 16), InternalError);
    } else {
      EXPECT_THROW(channel.send(buffer.data(), 16), InternalError);
    }
    EXPECT_EQ(channel.async_error(), ncclSuccess);
  });
}

TEST(Channel, ToItselfThrows) {
  ThreadGroup group(1);
  EXPECT_THROW(Channel(group.control(0), 0, 0), InternalError);
}

std::vector<Edge> ring_edges(int ranks) {
  std::vector<Edge> edges;
  for (int rank = 0; rank < ranks; ++rank) {
    edges.push_back({rank, (rank + 1) % ranks});
    edges.push_back({(rank + 1) % ranks, rank});
  }
  return edges;
}

TEST(PairingRounds, EveryEdgeIsInOneRoundAndARankHasAtMostOnePeer) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    const std::vector<Edge> edges = ring_edges(ranks);
    std::multiset<size_t> seen;
    for (const std::vector<size_t>& round : pairing_rounds(edges)) {
      std::set<int> busy;
      for (const size_t i : round) {
        seen.insert(i);
        EXPECT_TRUE(busy.insert(edges[i].source).second);
        EXPECT_TRUE(busy.insert(edges[i].destination).second);
      }
    }
    EXPECT_EQ(seen.size(), edges.size());
    EXPECT_EQ(std::set<size_t>(seen.begin(), seen.end()).size(), edges.size());
  }
}

// A rank of a line or ring has two neighbours and four edges: the time to connect does not grow
// with the number of ranks.
TEST(PairingRounds, TheirNumberDoesNotGrowWithTheRing) {
  for (int ranks = 4; ranks <= 64; ++ranks) {
    EXPECT_LE(pairing_rounds(ring_edges(ranks)).size(), 7u);
  }
}

}  // namespace
}  // namespace pipetrain
