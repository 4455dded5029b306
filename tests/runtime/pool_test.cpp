#include "pipetrain/runtime/pool.h"

#include <gtest/gtest.h>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

class PoolTest : public testing::Test {
 protected:
  PoolTest() : buffer_(Pool::bytes(2, 1000)), region_(buffer_), pool_("pool", 2, 1000, region_) {}
  Buffer buffer_;
  Region region_;
  Pool pool_;
};

TEST_F(PoolTest, TakesItsBytesFromTheRegionAndNoMore) {
  EXPECT_EQ(region_.left(), 0u);
  EXPECT_EQ(pool_.slot_bytes(), 1024u);
}

TEST_F(PoolTest, ASlotIsTakenOnce) {
  pool_.take(0);
  EXPECT_THROW(pool_.take(0), InternalError);
  pool_.give_back(0);
  EXPECT_NO_THROW(pool_.take(0));
}

TEST_F(PoolTest, NoSlotBeyondThePeak) {
  EXPECT_THROW(pool_.take(2), InternalError);
}

TEST_F(PoolTest, AFreeSlotIsNeitherUsedNorGivenBack) {
  EXPECT_THROW(pool_.use(1), InternalError);
  EXPECT_THROW(pool_.give_back(1), InternalError);
}

TEST_F(PoolTest, CountsTheSlotsThatWereWritten) {
  pool_.poison();
  EXPECT_EQ(pool_.touched_slots(), 0);
  check(cudaMemset(pool_.take(1), 0, 8), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_EQ(pool_.touched_slots(), 1);
}

}  // namespace
}  // namespace pipetrain
