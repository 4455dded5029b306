#include "pipetrain/train/learning_rate.h"

#include <gtest/gtest.h>

#include "tests/train/temporary.h"

namespace pipetrain {
namespace {

TEST(LearningRate, RisesLinearlyToThePeakDuringTheWarmUp) {
  for (const LrSchedule schedule : {LrSchedule::constant, LrSchedule::cosine, LrSchedule::linear}) {
    const LearningRate rate{schedule, 0.8, 0.1, 4, 10};
    EXPECT_DOUBLE_EQ(rate.at(0), 0.2);
    EXPECT_DOUBLE_EQ(rate.at(3), 0.8);
    EXPECT_DOUBLE_EQ(rate.at(4), 0.8);
  }
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  EXPECT_EQ((LearningRate{LrSchedule::constant, 0.8, 0, 0, 10}.at(1000)), 0.8);
}

TEST(LearningRate, FallsToTheMinimum) {
  const LearningRate cosine{LrSchedule::cosine, 0.9, 0.1, 2, 12};
  EXPECT_DOUBLE_EQ(cosine.at(7), 0.5);                                     // half way
  EXPECT_NEAR(cosine.at(4), 0.1 + 0.4 * (1 + 0.8090169943749475), 1e-15);  // cos(pi / 5)
  EXPECT_DOUBLE_EQ(cosine.at(12), 0.1);
  EXPECT_DOUBLE_EQ(cosine.at(100), 0.1);
  const LearningRate linear{LrSchedule::linear, 0.9, 0.1, 2, 12};
  EXPECT_DOUBLE_EQ(linear.at(7), 0.5);
  EXPECT_DOUBLE_EQ(linear.at(11), 0.1 + 0.08);
  EXPECT_DOUBLE_EQ(linear.at(12), 0.1);
}

TEST(LearningRate, WarmUpAsLongAsTheRunIsNoDivisionByZero) {
  EXPECT_EQ((LearningRate{LrSchedule::cosine, 0.9, 0.1, 5, 5}.at(4)), 0.9);
  EXPECT_EQ((LearningRate{LrSchedule::cosine, 0.9, 0.1, 5, 5}.at(5)), 0.1);
}

TEST(LearningRate, SchedulesHaveTheNamesOfTheFlag) {
  for (const char* name : {"constant", "cosine", "linear"}) {
    EXPECT_EQ(to_string(parse_lr_schedule(name)), name);
  }
  EXPECT_PRED2(contains, usage_error([] { parse_lr_schedule("exponential"); }),
               "--lr-schedule exponential: must be constant, cosine or linear");
}

}  // namespace
}  // namespace pipetrain
