#include "pipetrain/schedule/placement.h"

#include <gtest/gtest.h>

#include "pipetrain/error.h"
#include "pipetrain/schedule/action.h"

namespace pipetrain::schedule {
namespace {

TEST(Action, ReadsAsInPyTorchsFiles) {
  EXPECT_EQ(to_string({Kind::forward, 2, 0}), "2F0");
  EXPECT_EQ(to_string({Kind::backward, 12, 34}), "12B34");
  EXPECT_EQ(to_string({Kind::backward_input, 1, 3}), "1I3");
  EXPECT_EQ(to_string({Kind::backward_weight, 1, 3}), "1W3");
  EXPECT_EQ(to_string({Kind::send_forward, 0, 1}), "0SEND_F1");
  EXPECT_EQ(to_string({Kind::receive_forward, 1, 1}), "1RECV_F1");
  EXPECT_EQ(to_string({Kind::send_backward, 1, 1}), "1SEND_B1");
  EXPECT_EQ(to_string({Kind::receive_backward, 0, 1}), "0RECV_B1");
  EXPECT_EQ(to_string({Kind::reduce_gradients, 1, 0}), "1REDUCE_GRAD");
  EXPECT_EQ(to_string({Kind::optimizer_step, 0, 0}), "OPTIMIZER_STEP");
}

TEST(Placement, LoopGoesAround) {
  const Placement placement(Placement::Kind::loop, 3, 2, 4);
  for (int stage = 0; stage < 6; ++stage) {
    EXPECT_EQ(placement.owner(stage, 0), stage % 3);
    EXPECT_EQ(placement.owner(stage, 3), stage % 3);
  }
  EXPECT_EQ(placement.stages(), 6);
  EXPECT_TRUE(placement.holds(1, 4));
  EXPECT_FALSE(placement.holds(1, 3));
}

TEST(Placement, VGoesDownAndUp) {
  const Placement placement(Placement::Kind::v, 3, 4, 1);
  const int owners[] = {0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0};
  for (int stage = 0; stage < 12; ++stage) {
    EXPECT_EQ(placement.owner(stage, 0), owners[stage]);
  }
}

TEST(Placement, MirroredGoesBothWays) {
  const Placement halves(Placement::Kind::mirrored, 4, 1, 8);
  const Placement blocks(Placement::Kind::mirrored, 4, 1, 8, 4);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(halves.direction(i), i < 4 ? 0 : 1);
    EXPECT_EQ(blocks.direction(i), i % 4 < 2 ? 0 : 1);
    for (int stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(halves.owner(stage, i), i < 4 ? stage : 3 - stage);
      EXPECT_EQ(blocks.owner(stage, i), i % 4 < 2 ? stage : 3 - stage);
    }
  }
  EXPECT_TRUE(halves.holds(1, 1));
  EXPECT_TRUE(halves.holds(1, 2));
  EXPECT_FALSE(halves.holds(1, 0));
}

TEST(Placement, RefusesWhatItCannotPlace) {
  using Kind = Placement::Kind;
  EXPECT_THROW(Placement(Kind::loop, 0, 1, 1), UsageError);
  EXPECT_THROW(Placement(Kind::v, 1, 0, 1), UsageError);
  EXPECT_THROW(Placement(Kind::loop, 1, 1, 0), UsageError);
  EXPECT_THROW(Placement(Kind::mirrored, 3, 1, 4), UsageError);
  EXPECT_THROW(Placement(Kind::mirrored, 2, 2, 4), UsageError);
  EXPECT_THROW(Placement(Kind::mirrored, 2, 1, 3), UsageError);
  EXPECT_THROW(Placement(Kind::mirrored, 2, 1, 6, 4), UsageError);
  EXPECT_THROW(Placement(Kind::mirrored, 2, 1, 6, 3), UsageError);
}

}  // namespace
}  // namespace pipetrain::schedule
