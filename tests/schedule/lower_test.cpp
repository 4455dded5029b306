#include "pipetrain/schedule/lower.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "pipetrain/error.h"
#include "pipetrain/schedule/validate.h"
#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

std::string list_of(const LoweredSchedule& schedule, int rank) {
  std::string text;
  for (const LoweredAction& lowered : schedule.ranks[rank]) {
    text += to_string(lowered.action) + " ";
  }
  return text;
}

const std::vector<Request> samples = {
    request("gpipe", 3, 4),          request("1f1b", 4, 6),
    request("interleaved", 2, 4, 2), request("interleaved", 4, 10, 3, 5),
    request("looped-bfs", 3, 6, 2),  request("zb-h1", 4, 6),
    request("zb-h2", 3, 7),          request("zb-v", 3, 6),
    request("v-half", 4, 8),         request("v-min", 3, 6),
    request("dualpipe", 4, 10),      request("dualpipe-v", 3, 7),
    request("chimera", 4, 8),        request("pipedream", 3, 5),
    request("pipedream-2bw", 3, 5)};

TEST(Lower, PutsTransfersReductionsAndTheOptimizerIntoTheLists) {
  const LoweredSchedule lowered = lower(generate(request("1f1b", 2, 2)));
  EXPECT_EQ(list_of(lowered, 0),
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD OPTIMIZER_STEP ");
  EXPECT_EQ(list_of(lowered, 1),
            "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD OPTIMIZER_STEP ");
}

TEST(Lower, ReducesAStageRightAfterItsLastWeightGradient) {
  for (const Request& sample : samples) {
    if (sample.name == "pipedream") {
      continue;
    }
    const LoweredSchedule lowered = lower(generate(sample));
    const bool mirrored = lowered.placement.kind() == Placement::Kind::mirrored;
    for (const std::vector<LoweredAction>& list : lowered.ranks) {
      std::set<int> stages;
      std::set<int> reduced;
      for (const LoweredAction& lowered_action : list) {
        const Action& action = lowered_action.action;
        if (is_compute(action.kind)) {
          stages.insert(action.stage);
          EXPECT_FALSE(reduced.count(action.stage)) << sample.name << ": " << to_string(action);
          EXPECT_TRUE(!mirrored || reduced.empty());
        }
        if (action.kind == Kind::reduce_gradients) {
          EXPECT_TRUE(reduced.insert(action.stage).second);
        }
      }
      EXPECT_EQ(reduced, stages) << sample.name;
      EXPECT_EQ(list.back().action.kind, Kind::optimizer_step) << sample.name;
    }
  }
}

TEST(Lower, UpdatesAfterEveryBackwardOfPipedream) {
  const LoweredSchedule lowered = lower(generate(request("pipedream", 2, 2)));
  EXPECT_EQ(list_of(lowered, 1),
            "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1REDUCE_GRAD OPTIMIZER_STEP 1F1 1B1 1SEND_B1 "
            "1REDUCE_GRAD OPTIMIZER_STEP ");
}

// The slots of the weights that the computations and updates of a rank use.
std::string weights_of(const LoweredSchedule& lowered, int rank) {
  std::string text;
  for (const LoweredAction& entry : lowered.ranks[rank]) {
    if (is_compute(entry.action.kind)) {
      text += to_string(entry.action) + ":" + std::to_string(entry.weights) + " ";
    } else if (entry.action.kind == Kind::optimizer_step) {
      text += ">" + std::to_string(entry.weights) + " ";
    }
  }
  return text;
}

TEST(Lower, ABackwardOfPipedreamUsesTheWeightsOfItsForward) {
  const LoweredSchedule lowered = lower(generate(request("pipedream", 3, 4)));
  EXPECT_EQ(weights_of(lowered, 0), "0F0:0 0F1:0 0F2:0 0B0:0 >1 0F3:0 0B1:1 >2 0B2:1 >1 0B3:2 >0 ");
  EXPECT_EQ(weights_of(lowered, 1), "1F0:0 1F1:0 1B0:0 >1 1F2:0 1B1:1 >1 1F3:0 1B2:1 >1 1B3:1 >0 ");
  EXPECT_EQ(weights_of(lowered, 2), "2F0:0 2B0:0 >0 2F1:0 2B1:0 >0 2F2:0 2B2:0 >0 2F3:0 2B3:0 >0 ");
}

TEST(Lower, PipedreamTwoBwComputesWithTheWeightsBeforeTheCurrentOnes) {
  const LoweredSchedule lowered = lower(generate(request("pipedream-2bw", 2, 2)));
  EXPECT_EQ(weights_of(lowered, 0), "0F0:1 0F1:1 0B0:1 0B1:1 >1 ");
  EXPECT_EQ(weights_of(lowered, 1), "1F0:1 1B0:1 1F1:1 1B1:1 >1 ");
}

// A file may say so of any schedule.
TEST(Lower, KeepsTheWeightsOfEveryForwardWhereUpdatesFollowEveryWeightGradient) {
  for (const Request& sample : samples) {
    Schedule schedule = generate(sample);
    if (schedule.placement.kind() == Placement::Kind::mirrored) {
      continue;
    }
    schedule.update = Update::every_backward;
    EXPECT_NO_THROW(validate(lower(schedule))) << sample.name;
  }
}

TEST(Lower, KeepsAsManyWeightVersionsAsAreSimulated) {
  for (const Request& sample : samples) {
    const Schedule schedule = generate(sample);
    const Simulation simulation = simulate(schedule, {});
    const LoweredSchedule lowered = lower(schedule);
    for (int r = 0; r < lowered.placement.ranks(); ++r) {
      EXPECT_EQ(lowered.weight_versions[r], simulation.ranks[r].weight_versions) << sample.name;
    }
    for (const int versions : lower(schedule, {.forward_only = true}).weight_versions) {
      EXPECT_EQ(versions, 1) << sample.name;  // evaluation uses the current weights
    }
  }
}

// In v-half a rank holds a stage of either half, so that every rank has one that keeps none.
TEST(Lower, StagesThatKeepNoGradientsGetNoSlots) {
  LoweredSchedule lowered = lower(generate(request("v-half", 4, 8)));
  const std::vector<int> all = lowered.gradient_slots;
  std::vector<bool> keeps(8, true);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(gradient_slots(lowered, rank, keeps), all[size_t(rank)]);
  }
  keeps = {true, true, false, false, true, true, false, false};
  assign_gradient_slots(&lowered, keeps);
  EXPECT_NO_THROW(validate(lowered));
  for (int rank = 0; rank < 4; ++rank) {
    std::set<int> slots;
    for (const LoweredAction& entry : lowered.ranks[size_t(rank)]) {
      const bool split =
          entry.action.kind == Kind::backward_input || entry.action.kind == Kind::backward_weight;
      EXPECT_EQ(entry.gradient_slot >= 0, split && keeps[size_t(entry.action.stage)]);
      slots.insert(entry.gradient_slot);
    }
    slots.erase(-1);
    EXPECT_EQ(int(slots.size()), lowered.gradient_slots[size_t(rank)]);
    EXPECT_EQ(gradient_slots(lowered, rank, keeps), lowered.gradient_slots[size_t(rank)]);
  }
  EXPECT_LT(lowered.gradient_slots[3], all[3]);
}

// Fault 5: a receive posted early blocks independent work behind it.
TEST(Lower, GatesEveryReceiveByTheComputationBeforeItsConsumer) {
  for (const Request& sample : samples) {
    const LoweredSchedule lowered = lower(generate(sample));
    for (int r = 0; r < lowered.placement.ranks(); ++r) {
      const std::vector<LoweredAction>& list = lowered.ranks[r];
      int before = -1;   // last computation that starts before the next one
      int pending = -1;  // first of an overlapped pair, when the next entry is the second
      for (int i = 0; i < int(list.size()); ++i) {
        const LoweredAction& consumer = list[i];
        if (!is_compute(consumer.action.kind)) {
          continue;
        }
        if (consumer.input.channel >= 0 &&
            lowered.channels[consumer.input.channel].incoming_slots > 0) {
          int receive = i - 1;
          while (!is_receive(list[receive].action.kind) ||
                 list[receive].message.channel != consumer.input.channel) {
            --receive;
          }
          EXPECT_EQ(list[receive].gate, before)
              << sample.name << " rank " << r << ": " << to_string(consumer.action);
          EXPECT_EQ(list[receive].action.microbatch, consumer.action.microbatch);
        }
        if (consumer.action.overlaps_next) {
          pending = i;
        } else {
          before = i;
          pending = -1;
        }
      }
      EXPECT_EQ(pending, -1);
    }
  }
}

// Fault 2: with p=2 and v=2 the next rank is the previous one, and forward and backward tensors are
// swapped.
TEST(Lower, KeepsForwardAndBackwardApartBetweenTwoRanks) {
  for (const char* name : {"interleaved", "looped-bfs", "zb-v", "dualpipe-v"}) {
    const LoweredSchedule lowered = lower(generate(request(name, 2, 4, 2)));
    const auto direction_of = [&](const SlotRef& slot) {
      return lowered.channels[slot.channel].direction;
    };
    int messages = 0;
    for (int r = 0; r < 2; ++r) {
      for (const LoweredAction& entry : lowered.ranks[r]) {
        const Kind kind = entry.action.kind;
        const bool forward =
            kind == Kind::forward || kind == Kind::send_forward || kind == Kind::receive_forward;
        const Direction expected = forward ? Direction::forward : Direction::backward;
        for (const SlotRef& slot : {entry.message, entry.input, entry.output}) {
          if (slot.channel >= 0) {
            EXPECT_EQ(direction_of(slot), expected) << name << ": " << to_string(entry.action);
          }
        }
        if (is_send(kind)) {
          EXPECT_EQ(lowered.channels[entry.message.channel].source, r);
          EXPECT_EQ(lowered.channels[entry.message.channel].destination, 1 - r);
          ++messages;
        }
      }
    }
    EXPECT_GT(messages, 0) << name;
    EXPECT_NO_THROW(validate(lowered)) << name;
  }
}

TEST(Lower, HasTwoOutgoingSlotsAndOneIncoming) {
  for (const Request& sample : samples) {
    const LoweredSchedule lowered = lower(generate(sample));
    const int p = sample.ranks;
    const int m = sample.microbatches;
    const int more = sample.name == "looped-bfs" ? m - p : sample.group > p ? sample.group - p : 0;
    for (const Channel& channel : lowered.channels) {
      if (channel.source == channel.destination) {
        EXPECT_EQ(channel.incoming_slots, 0);
        continue;
      }
      const bool forward = channel.direction == Direction::forward;
      const bool wraps =
          channel.source == (forward ? p - 1 : 0) && channel.destination == (forward ? 0 : p - 1);
      EXPECT_EQ(channel.incoming_slots, 1);
      EXPECT_GE(channel.outgoing_slots, 2);
      EXPECT_LE(channel.outgoing_slots, 2 + (wraps ? more : 0))
          << sample.name << ": " << channel.source << " -> " << channel.destination;
    }
  }
}

// Larger groups fill the wrap-around channels before anything is taken from them.
TEST(Lower, GivesTheWrapAroundChannelsWhatTheGroupNeeds) {
  const auto most = [](const Request& asked) {
    int slots = 0;
    for (const Channel& channel : lower(generate(asked)).channels) {
      slots = std::max(slots, channel.outgoing_slots);
    }
    return slots;
  };
  EXPECT_EQ(most(request("interleaved", 4, 12, 2, 4)), 2);
  EXPECT_GT(most(request("interleaved", 4, 24, 2, 12)), most(request("interleaved", 4, 24, 2, 8)));
  EXPECT_GT(most(request("looped-bfs", 4, 16, 2)), most(request("looped-bfs", 4, 8, 2)));
}

TEST(Lower, HandsOverInsideARankWithoutMessages) {
  const LoweredSchedule one = lower(generate(request("interleaved", 1, 3, 3)));
  for (const LoweredAction& lowered : one.ranks[0]) {
    EXPECT_FALSE(is_send(lowered.action.kind) || is_receive(lowered.action.kind));
  }
  const LoweredSchedule turn = lower(generate(request("zb-v", 3, 6)));
  int inside = 0;
  for (const Channel& channel : turn.channels) {
    if (channel.source == channel.destination) {
      ++inside;
      EXPECT_EQ(channel.source, 2);
      EXPECT_EQ(channel.outgoing_slots, 1);
    }
  }
  EXPECT_EQ(inside, 2);
}

TEST(Lower, WholeBackwardsUseNoGradientSlots) {
  const LoweredSchedule lowered = lower(generate(request("1f1b", 3, 5)));
  EXPECT_EQ(lowered.gradient_slots, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(lowered.activation_slots, (std::vector<int>{3, 2, 1}));
}

TEST(Lower, SplitBackwardsKeepTheActivationUntilTheWeightGradient) {
  const LoweredSchedule lowered = lower(generate(request("zb-h1", 2, 4)));
  EXPECT_EQ(lowered.activation_slots, (std::vector<int>{2, 2}));
  EXPECT_EQ(lowered.gradient_slots, (std::vector<int>{1, 2}));
}

// An interpreter of the global order that knows nothing of lists: every input was produced, sent
// and received before, and no buffer is overwritten while something in it is still needed.
TEST(Lower, GlobalOrderRunsOneEntryAtATime) {
  for (const Request& sample : samples) {
    SCOPED_TRACE(sample.name);
    const LoweredSchedule lowered = lower(generate(sample));
    std::map<std::tuple<int, bool, int>, std::pair<int, int>> buffers;  // channel, incoming, slot
    const auto key = [](const SlotRef& slot, bool in) {
      return std::tuple(slot.channel, in, slot.slot);
    };
    const auto producer_of = [](const Action& action) {
      return std::pair(action.stage + (action.kind == Kind::forward ? -1 : 1), action.microbatch);
    };
    std::pair<int, int> in_flight;
    for (const auto& [rank, index] : lowered.order) {
      const LoweredAction& entry = lowered.ranks[rank][index];
      const Action& action = entry.action;
      if (is_send(action.kind)) {
        ASSERT_TRUE(buffers.count(key(entry.message, false))) << to_string(action);
        in_flight = buffers[key(entry.message, false)];
        EXPECT_EQ(in_flight, std::pair(action.stage, action.microbatch));
        buffers.erase(key(entry.message, false));
      } else if (is_receive(action.kind)) {
        ASSERT_TRUE(buffers.emplace(key(entry.message, true), in_flight).second)
            << to_string(action);
      } else if (is_compute(action.kind)) {
        if (entry.input.channel >= 0) {
          const bool sent = lowered.channels[entry.input.channel].incoming_slots > 0;
          ASSERT_TRUE(buffers.count(key(entry.input, sent))) << to_string(action);
          EXPECT_EQ(buffers[key(entry.input, sent)], producer_of(action));
          buffers.erase(key(entry.input, sent));
        }
        if (entry.output.channel >= 0) {
          ASSERT_TRUE(
              buffers.emplace(key(entry.output, false), std::pair(action.stage, action.microbatch))
                  .second)
              << to_string(action);
        }
      }
    }
    EXPECT_TRUE(buffers.empty());
  }
}

TEST(Lower, IsDeterministic) {
  for (const Request& sample : samples) {
    const LoweredSchedule first = lower(generate(sample));
    const LoweredSchedule second = lower(generate(sample));
    for (int r = 0; r < sample.ranks; ++r) {
      EXPECT_EQ(list_of(first, r), list_of(second, r));
    }
  }
}

TEST(Lower, RefusesListsThatDeadlockAndNamesWhoWaitsForWhom) {
  Schedule schedule = generate(request("1f1b", 2, 2));
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);  // 0F0 0B0 0F1 0B1
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);  // 1F0 1F1 1B0 1B1
  try {
    lower(schedule);
    FAIL();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 0, position 1: 0B0 waits for 1B0 of rank 1"), std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 1, position 1: 1F1 waits for 0F1 of rank 0"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace pipetrain::schedule
