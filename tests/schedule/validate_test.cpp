#include "pipetrain/schedule/validate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "pipetrain/error.h"
#include "pipetrain/schedule/lower.h"
#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

const std::vector<Request> samples = {
    request("gpipe", 3, 3),         request("1f1b", 4, 5),       request("interleaved", 2, 4, 2),
    request("looped-bfs", 2, 3, 2), request("zb-h1", 3, 5),      request("zb-h2", 3, 6),
    request("zb-v", 2, 5),          request("v-half", 3, 5),     request("v-min", 3, 5),
    request("dualpipe", 4, 8),      request("dualpipe-v", 2, 5), request("chimera", 4, 4),
    request("1f1b", 1, 1)};

template <typename Lists>
std::string rejection(const Lists& schedule) {
  try {
    validate(schedule);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::string at(int rank, int position, const Action& action) {
  return "rank " + std::to_string(rank) + ", position " + std::to_string(position) + ": " +
         to_string(action);
}

// Calls mutate(schedule, rank, position) on a fresh copy for every entry of every sample.
void for_each_entry(const std::function<void(Schedule, int, int)>& mutate) {
  for (const Request& sample : samples) {
    const Schedule schedule = generate(sample);
    for (int r = 0; r < int(schedule.ranks.size()); ++r) {
      for (int i = 0; i < int(schedule.ranks[r].size()); ++i) {
        mutate(schedule, r, i);
      }
    }
  }
}

TEST(Validate, RejectsEveryDroppedEntry) {
  for_each_entry([](Schedule schedule, int rank, int position) {
    std::vector<Action>& list = schedule.ranks[rank];
    const Action dropped = list[position];
    list.erase(list.begin() + position);
    const std::string text = rejection(schedule);
    EXPECT_NE(text.find("rank " + std::to_string(rank)), std::string::npos)
        << schedule.name << " without " << to_string(dropped) << ": '" << text << "'";
  });
}

// Fault 30: a validator that accepts duplicates, an index >= m, a wrong owner.
TEST(Validate, RejectsEveryDuplicate) {
  for_each_entry([](Schedule schedule, int rank, int position) {
    std::vector<Action>& list = schedule.ranks[rank];
    Action copy = list[position];
    copy.overlaps_next = false;
    list.push_back(copy);
    EXPECT_NE(rejection(schedule).find(at(rank, int(list.size()) - 1, copy)), std::string::npos)
        << schedule.name << ": '" << rejection(schedule) << "'";
  });
}

TEST(Validate, RejectsEveryEntryOnAWrongRank) {
  for_each_entry([](Schedule schedule, int rank, int position) {
    if (schedule.ranks.size() == 1) {
      return;
    }
    const int other = (rank + 1) % int(schedule.ranks.size());
    std::vector<Action>& list = schedule.ranks[rank];
    std::vector<Action>& target = schedule.ranks[other];
    Action moved = list[position];
    moved.overlaps_next = false;
    if (position > 0) {
      list[position - 1].overlaps_next = false;
    }
    list.erase(list.begin() + position);
    target.push_back(moved);
    // What is missed may be found first, on the rank that should have it.
    EXPECT_NE(rejection(schedule), "") << schedule.name << ": " << to_string(moved);
    schedule.ranks[rank].clear();
    if (other < rank) {
      EXPECT_NE(rejection(schedule).find(at(other, int(target.size()) - 1, moved)),
                std::string::npos)
          << rejection(schedule);
    }
  });
}

TEST(Validate, RejectsEveryIndexOutOfRange) {
  for_each_entry([](const Schedule& schedule, int rank, int position) {
    const auto expect_named = [&](auto&& change) {
      Schedule mutant = schedule;
      change(mutant.ranks[rank][position]);
      EXPECT_NE(rejection(mutant).find(at(rank, position, mutant.ranks[rank][position])),
                std::string::npos)
          << rejection(mutant);
    };
    const Placement& placement = schedule.placement;
    expect_named([&](Action& action) { action.microbatch = placement.microbatches(); });
    expect_named([&](Action& action) { action.microbatch = -1; });
    expect_named([&](Action& action) { action.stage = placement.stages(); });
    expect_named([&](Action& action) { action.stage = -1; });
    expect_named([&](Action& action) { action.kind = Kind::send_forward; });
  });
}

// A backward before its forward, a weight gradient before its input gradient.
TEST(Validate, RejectsEverySwapOfAComputationWithWhatItNeedsOnItsRank) {
  for_each_entry([](Schedule schedule, int rank, int position) {
    std::vector<Action>& list = schedule.ranks[rank];
    const Action action = list[position];
    for (int later = position + 1; later < int(list.size()); ++later) {
      const bool needs =
          list[later].stage == action.stage && list[later].microbatch == action.microbatch;
      if (needs) {
        std::swap(list[position].kind, list[later].kind);
        EXPECT_NE(rejection(schedule), "") << schedule.name << ": " << to_string(action);
        std::swap(list[position].kind, list[later].kind);
      }
    }
  });
}

// Two messages of one directed edge change places on one of its ends.
TEST(Validate, RejectsEverySwapThatOvertakesAMessage) {
  for_each_entry([](Schedule schedule, int rank, int position) {
    std::vector<Action>& list = schedule.ranks[rank];
    const Action action = list[position];
    const Placement& placement = schedule.placement;
    const auto peer = [&](const Action& a) {
      const int to = a.kind == Kind::forward ? a.stage + 1 : a.stage - 1;
      return a.kind == Kind::backward_weight || to < 0 || to >= placement.stages()
                 ? -1
                 : placement.owner(to, a.microbatch);
    };
    for (int later = position + 1; later < int(list.size()); ++later) {
      if (list[later].kind == action.kind && list[later].stage == action.stage &&
          peer(list[later]) == peer(action) && peer(action) >= 0 && peer(action) != rank) {
        std::swap(list[position].microbatch, list[later].microbatch);
        EXPECT_NE(rejection(schedule), "") << schedule.name << ": " << to_string(action);
        return;
      }
    }
  });
}

// Any swap at all: what is accepted can also be lowered, and runs.
TEST(Validate, AcceptsASwapOnlyIfItRuns) {
  int accepted = 0;
  int rejected = 0;
  for_each_entry([&](Schedule schedule, int rank, int position) {
    std::vector<Action>& list = schedule.ranks[rank];
    for (int later = position + 1; later < int(list.size()); later += 3) {
      std::swap(list[position], list[later]);
      if (rejection(schedule).empty()) {
        ++accepted;
        EXPECT_EQ(rejection(lower(schedule)), "");
        EXPECT_GE(simulate(schedule, {}).makespan, simulate(schedule, {}).ideal);
      } else {
        ++rejected;
      }
      std::swap(list[position], list[later]);
    }
  });
  EXPECT_GT(accepted, 0);
  EXPECT_GT(rejected, 0);
}

TEST(Validate, RejectsAWeightGradientWithoutItsInputGradient) {
  Schedule schedule = generate(request("zb-h1", 2, 2));
  for (Action& action : schedule.ranks[1]) {
    if (action.kind == Kind::backward_input && action.microbatch == 1) {
      action.kind = Kind::backward;
    }
  }
  const std::string text = rejection(schedule);
  EXPECT_NE(text.find("1W1"), std::string::npos) << text;
  EXPECT_NE(text.find("W without I"), std::string::npos) << text;
}

TEST(Validate, RejectsADeadlockAcrossRanks) {
  // Each list is in order by itself.
  Schedule schedule{"lists",
                    Placement(Placement::Kind::loop, 2, 1, 2),
                    {{{Kind::forward, 0, 0},
                      {Kind::backward, 0, 0},
                      {Kind::forward, 0, 1},
                      {Kind::backward, 0, 1}},
                     {{Kind::forward, 1, 0},
                      {Kind::forward, 1, 1},
                      {Kind::backward, 1, 0},
                      {Kind::backward, 1, 1}}}};
  const std::string text = rejection(schedule);
  EXPECT_NE(text.find("deadlock"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 0, position 1: 0B0 waits for 1B0 of rank 1"), std::string::npos)
      << text;
}

TEST(Validate, RejectsPairsThatAreNone) {
  const auto with_pair_at = [](int position) {
    Schedule schedule = generate(request("1f1b", 2, 3));
    schedule.ranks[0][position].overlaps_next = true;
    return rejection(schedule);
  };
  // Rank 0: 0F0 0F1 0B0 0F2 0B1 0B2.
  EXPECT_NE(with_pair_at(0).find("rank 0, position 0: 0F0"), std::string::npos);
  EXPECT_EQ(with_pair_at(3), "");
  EXPECT_NE(with_pair_at(4).find("rank 0, position 4: 0B1"), std::string::npos);
  EXPECT_NE(with_pair_at(5).find("rank 0, position 5: 0B2"), std::string::npos);
}

// A pair starts when both of its entries can: it must not wait for itself.
TEST(Validate, RejectsAPairThatWaitsForItself) {
  Schedule schedule = generate(request("1f1b", 2, 1));
  schedule.ranks[1][0].overlaps_next = true;  // 1F0 & 1B0
  EXPECT_NE(rejection(schedule).find("deadlock"), std::string::npos) << rejection(schedule);
}

TEST(Validate, WarnsOfWeightGradientsThatDoNotAscend) {
  Schedule schedule = generate(request("zb-h2", 2, 4));
  std::vector<Action>& list = schedule.ranks[1];
  std::swap(list[list.size() - 2], list[list.size() - 1]);
  const std::vector<std::string> warnings = validate(schedule);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("rank 1"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("1W2"), std::string::npos) << warnings[0];
}

TEST(Validate, RejectsListsForOtherRanks) {
  Schedule schedule = generate(request("1f1b", 3, 2));
  schedule.ranks.pop_back();
  EXPECT_NE(rejection(schedule).find("--ranks"), std::string::npos);
}

}  // namespace
}  // namespace pipetrain::schedule
