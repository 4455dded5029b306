#include <gtest/gtest.h>

#include <algorithm>

#include "pipetrain/error.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"
#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

std::string rejection(const LoweredSchedule& schedule) {
  try {
    validate(schedule);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

int find(const LoweredSchedule& schedule, int rank, const Action& action) {
  const std::vector<LoweredAction>& list = schedule.ranks[rank];
  return int(std::find_if(list.begin(), list.end(),
                          [&](const LoweredAction& entry) { return entry.action == action; }) -
             list.begin());
}

LoweredAction& entry(LoweredSchedule& schedule, int rank, const Action& action) {
  return schedule.ranks[rank].at(find(schedule, rank, action));
}

void expect_rejected(const LoweredSchedule& schedule, const std::vector<std::string>& words) {
  const std::string text = rejection(schedule);
  EXPECT_NE(text, "");
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << text << "' does not say " << word;
  }
}

LoweredSchedule sample() {
  return lower(generate(request("1f1b", 2, 3)));
}
LoweredSchedule split_sample() {
  return lower(generate(request("zb-h1", 2, 3)));
}

TEST(ValidateLowered, AcceptsWhatLowerReturns) {
  EXPECT_EQ(rejection(sample()), "");
  EXPECT_EQ(rejection(split_sample()), "");
}

TEST(ValidateLowered, RejectsMessagesInAnotherOrderThanTheyAreReceived) {
  LoweredSchedule schedule = sample();
  LoweredAction& first = entry(schedule, 0, {Kind::send_forward, 0, 0});
  LoweredAction& second = entry(schedule, 0, {Kind::send_forward, 0, 1});
  std::swap(first.action.microbatch, second.action.microbatch);
  expect_rejected(schedule, {"FIFO", "1RECV_F0", "0SEND_F1", "rank 1", "rank 0"});
}

TEST(ValidateLowered, RejectsSlotsUsedTwice) {
  // Rank 0 writes 0F1 while 0F0 has not been sent.
  LoweredSchedule schedule = sample();
  const int send = find(schedule, 0, {Kind::send_forward, 0, 0});
  const int write = find(schedule, 0, {Kind::forward, 0, 1});
  std::vector<LoweredAction>& list = schedule.ranks[0];
  std::rotate(list.begin() + send, list.begin() + send + 1, list.begin() + write + 1);
  for (LoweredAction& lowered : list) {
    if (lowered.output.channel >= 0) {
      lowered.output.slot = 0;
    }
    if (is_send(lowered.action.kind)) {
      lowered.message.slot = 0;
    }
  }
  expect_rejected(schedule, {"rank 0", "0F1", "used twice"});

  LoweredSchedule activations = sample();
  entry(activations, 0, {Kind::forward, 0, 1}).activation_slot =
      entry(activations, 0, {Kind::forward, 0, 0}).activation_slot;
  expect_rejected(activations, {"rank 0", "0F1", "activation slot", "used twice"});
}

TEST(ValidateLowered, RejectsSlotsThatDoNotExist) {
  LoweredSchedule activations = sample();
  entry(activations, 0, {Kind::forward, 0, 1}).activation_slot = 2;
  expect_rejected(activations, {"rank 0", "0F1", "activation slot 2 does not exist; there are 2"});

  LoweredSchedule pool = sample();
  --pool.activation_slots[0];
  expect_rejected(pool, {"rank 0", "activation slot", "does not exist"});

  LoweredSchedule gradients = split_sample();
  entry(gradients, 1, {Kind::backward_input, 1, 0}).gradient_slot = -1;
  expect_rejected(gradients, {"rank 1", "1I0", "gradient slot -1"});

  gradients = split_sample();
  gradients.keeps_gradients = {true, false};
  expect_rejected(gradients, {"rank 1", "1I0", "keeps no gradients", "gradient slot 0"});
  gradients.keeps_gradients = {true};
  expect_rejected(gradients, {"1 values for 2 stages"});

  LoweredSchedule outgoing = sample();
  entry(outgoing, 0, {Kind::send_forward, 0, 0}).message.slot = 2;
  expect_rejected(outgoing, {"rank 0", "0SEND_F0", "slot 2"});

  LoweredSchedule incoming = sample();
  entry(incoming, 1, {Kind::receive_forward, 1, 0}).message.slot = 1;
  expect_rejected(incoming, {"rank 1", "1RECV_F0", "slot 1"});
}

TEST(ValidateLowered, RejectsSlotsThatAreReadEmpty) {
  LoweredSchedule gradients = split_sample();
  entry(gradients, 1, {Kind::backward_weight, 1, 0}).activation_slot =
      1 - entry(gradients, 1, {Kind::backward_weight, 1, 0}).activation_slot;
  expect_rejected(gradients, {"rank 1", "1W0", "activation slot"});

  LoweredSchedule input = sample();
  entry(input, 1, {Kind::forward, 1, 0}).input = {};
  expect_rejected(input, {"rank 1", "1F0", "input"});

  LoweredSchedule output = sample();
  entry(output, 1, {Kind::forward, 1, 0}).output = {0, 0};
  expect_rejected(output, {"rank 1", "1F0", "no output"});
}

TEST(ValidateLowered, RejectsMissingTransfers) {
  for (const bool send : {true, false}) {
    LoweredSchedule schedule = sample();
    const int rank = send ? 0 : 1;
    const Action action =
        send ? Action{Kind::send_forward, 0, 2} : Action{Kind::receive_forward, 1, 2};
    schedule.ranks[rank].erase(schedule.ranks[rank].begin() + find(schedule, rank, action));
    EXPECT_NE(rejection(schedule), "");
  }
}

// Both ranks send and neither receives: fine while messages are small, a hang when they are not.
TEST(ValidateLowered, RejectsSendsThatWaitForEachOther) {
  LoweredSchedule schedule = sample();
  // Rank 1 sends the gradient of 0 before it receives the activation of 1, which rank 0 sends
  // first.
  std::vector<LoweredAction>& list = schedule.ranks[1];
  const int receive = find(schedule, 1, {Kind::receive_forward, 1, 1});
  const int send = find(schedule, 1, {Kind::send_backward, 1, 0});
  ASSERT_LT(receive, send);
  std::rotate(list.begin() + receive, list.begin() + receive + 1, list.begin() + send + 1);
  expect_rejected(schedule, {"deadlock", "rendezvous", "rank 0",
                             "0SEND_F1 waits for 1RECV_F1 of "
                             "rank 1",
                             "1SEND_B0 waits for 0RECV_B0 of rank 0"});
}

TEST(ValidateLowered, RejectsGatesThatAreNoEarlierComputation) {
  LoweredSchedule later = sample();
  const int receive = find(later, 1, {Kind::receive_forward, 1, 1});
  later.ranks[1][receive].gate = receive + 1;
  expect_rejected(later, {"rank 1", "1RECV_F1", "gate"});
  later.ranks[1][receive].gate = 0;  // 1RECV_F0
  expect_rejected(later, {"rank 1", "1RECV_F1", "gate"});
}

TEST(ValidateLowered, RejectsAGlobalOrderThatIsNone) {
  LoweredSchedule swapped = sample();
  std::swap(swapped.order[0], swapped.order[1]);
  EXPECT_NE(rejection(swapped), "");
  LoweredSchedule shorter = sample();
  shorter.order.pop_back();
  expect_rejected(shorter, {"missing in the global order"});
  EXPECT_EQ(rejection(sample()), "");
}

TEST(ValidateLowered, ChecksTheComputationsToo) {
  LoweredSchedule schedule = sample();
  entry(schedule, 1, {Kind::backward, 1, 2}).action.microbatch = 3;
  expect_rejected(schedule, {"rank 1", "1B3", "--microbatches 3"});
}

TEST(ValidateLowered, RejectsOtherWeightsThanThoseOfTheForward) {
  const LoweredSchedule good = lower(generate(request("pipedream", 3, 6)));
  EXPECT_EQ(rejection(good), "");
  LoweredSchedule bad = good;
  entry(bad, 0, {Kind::backward, 0, 3}).weights = 0;
  expect_rejected(bad, {"rank 0", "0B3", "weights slot 0", "version 3", "its forward used 1"});
  bad = good;
  entry(bad, 1, {Kind::forward, 1, 3}).weights = 1;
  expect_rejected(bad, {"rank 1", "1F3", "weights slot 1"});
  bad = good;
  entry(bad, 0, {Kind::optimizer_step, 0, 1}).weights = 0;
  expect_rejected(bad, {"rank 0", "weights slot", "its forward used"});
  bad = good;
  entry(bad, 2, {Kind::backward, 2, 0}).weights = 1;
  expect_rejected(bad, {"rank 2", "2B0", "does not exist", "there are 1"});

  bad = lower(generate(request("pipedream-2bw", 2, 3)));
  EXPECT_EQ(rejection(bad), "");
  entry(bad, 1, {Kind::forward, 1, 2}).weights = 0;
  expect_rejected(bad, {"rank 1", "1F2", "weights slot 0"});
}

}  // namespace
}  // namespace pipetrain::schedule
