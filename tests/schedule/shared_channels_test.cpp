#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"

namespace pipetrain::schedule {
namespace {

bool same_ends(const Channel& a, const Channel& b) {
  return a.source == b.source && a.destination == b.destination && a.direction == b.direction;
}

// Every buffer of `moved` is that of `schedule`, on a channel between the same ranks that has it.
void expect_same_buffers(const LoweredSchedule& moved, const LoweredSchedule& schedule) {
  ASSERT_EQ(moved.ranks.size(), schedule.ranks.size());
  for (size_t rank = 0; rank < moved.ranks.size(); ++rank) {
    ASSERT_EQ(moved.ranks[rank].size(), schedule.ranks[rank].size());
    for (size_t i = 0; i < moved.ranks[rank].size(); ++i) {
      const LoweredAction& now = moved.ranks[rank][i];
      const LoweredAction& before = schedule.ranks[rank][i];
      EXPECT_EQ(now.action, before.action);
      for (const auto member :
           {&LoweredAction::message, &LoweredAction::input, &LoweredAction::output}) {
        const SlotRef slot = now.*member;
        const SlotRef slot_before = before.*member;
        EXPECT_EQ(slot.slot, slot_before.slot);
        ASSERT_EQ(slot.channel < 0, slot_before.channel < 0);
        if (slot.channel >= 0) {
          const Channel& channel = moved.channels.at(size_t(slot.channel));
          EXPECT_TRUE(same_ends(channel, schedule.channels[size_t(slot_before.channel)]));
          EXPECT_LT(slot.slot, std::max(channel.outgoing_slots, channel.incoming_slots));
        }
      }
    }
  }
}

TEST(SharedChannels, AForwardOnlyListRunsOnTheChannelsOfTraining) {
  for (const auto& [name, ranks, microbatches] :
       {std::tuple("1f1b", 4, 1), std::tuple("interleaved", 2, 2), std::tuple("zb-v", 3, 6),
        std::tuple("dualpipe", 4, 8), std::tuple("gpipe", 1, 2)}) {
    SCOPED_TRACE(name);
    const Schedule training =
        generate({.name = name, .ranks = ranks, .microbatches = microbatches});
    const LoweredSchedule base = lower(training);
    const LoweredSchedule forwards = lower(generate_forward_only(training.placement, 9));
    const LoweredSchedule moved = on_channels_of(base, forwards);
    ASSERT_EQ(moved.channels.size(), base.channels.size());
    for (size_t c = 0; c < base.channels.size(); ++c) {
      EXPECT_TRUE(same_ends(moved.channels[c], base.channels[c]));
      EXPECT_GE(moved.channels[c].outgoing_slots, base.channels[c].outgoing_slots);
      EXPECT_EQ(moved.channels[c].incoming_slots, base.channels[c].incoming_slots);
    }
    expect_same_buffers(moved, forwards);
  }
}

TEST(SharedChannels, HaveTheSlotsThatEitherNeedsAndTheChannelsThatOneLacks) {
  const LoweredSchedule base = lower(generate({.name = "1f1b", .ranks = 2, .microbatches = 4}));
  LoweredSchedule forwards = lower(generate_forward_only(base.placement, 4));
  ASSERT_EQ(forwards.channels.size(), 1u);
  forwards.channels[0].outgoing_slots = 5;
  forwards.channels[0].incoming_slots = 3;
  forwards.channels.push_back({1, 0, Direction::forward, 4, 1});
  const LoweredSchedule moved = on_channels_of(base, forwards);
  ASSERT_EQ(moved.channels.size(), 3u);
  for (const Channel& channel : moved.channels) {
    const bool wider = channel.source == 0;
    EXPECT_EQ(channel.incoming_slots, wider ? 3 : 1);
    EXPECT_EQ(channel.outgoing_slots, wider ? 5 : channel.direction == Direction::backward ? 2 : 4);
  }
  expect_same_buffers(moved, forwards);
}

}  // namespace
}  // namespace pipetrain::schedule
