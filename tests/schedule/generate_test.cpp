#include "pipetrain/schedule/generate.h"

#include <gtest/gtest.h>

#include "pipetrain/error.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"
#include "tests/schedule/support.h"

namespace pipetrain::schedule {
namespace {

std::string list_of(const Schedule& schedule, int rank) {
  std::string text;
  for (const Action& action : schedule.ranks[rank]) {
    text += to_string(action) + (action.overlaps_next ? "&" : " ");
  }
  return text;
}

void expect_refused(const Request& asked, const std::vector<std::string>& words) {
  try {
    generate(asked);
    FAIL() << asked.name << " was accepted";
  } catch (const UsageError& error) {
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << error.what() << " does not name " << word;
    }
  }
}

TEST(Generate, WritesSmallSchedulesAsInTheLiterature) {
  EXPECT_EQ(list_of(generate(request("gpipe", 2, 2)), 1), "1F0 1F1 1B0 1B1 ");
  EXPECT_EQ(list_of(generate(request("1f1b", 2, 3)), 0), "0F0 0F1 0B0 0F2 0B1 0B2 ");
  EXPECT_EQ(list_of(generate(request("1f1b", 2, 3)), 1), "1F0 1B0 1F1 1B1 1F2 1B2 ");
  EXPECT_EQ(list_of(generate(request("interleaved", 2, 2, 2)), 1),
            "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 ");
  EXPECT_EQ(list_of(generate(request("looped-bfs", 2, 2, 2)), 1),
            "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1 ");
  EXPECT_EQ(list_of(generate(request("zb-h1", 2, 3)), 0), "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2 ");
  EXPECT_EQ(list_of(generate(request("zb-h1", 2, 3)), 1), "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2 ");
  EXPECT_EQ(list_of(generate(request("zb-h2", 2, 3)), 0), "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2 ");
  EXPECT_EQ(list_of(generate(request("zb-v", 1, 2)), 0),
            "0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1 ");
  EXPECT_EQ(list_of(generate(request("dualpipe", 2, 4)), 0),
            "0F0 1F2 0F1 1B2 1F3&0B0 1B3 0I1 0W1 ");
  EXPECT_EQ(list_of(generate(request("chimera", 2, 2)), 0), "0F0 1F1 1B1 0B0 ");
}

TEST(Generate, DefaultsToTwoChunksWhereASchedulesPointIsToHaveSeveral) {
  for (const std::string& name : schedule_names()) {
    const bool chunked = name == "interleaved" || name == "looped-bfs" || name == "zb-v" ||
                         name == "v-half" || name == "v-min" || name == "dualpipe-v";
    EXPECT_EQ(generate(request(name, 2, 4)).placement.chunks(), chunked ? 2 : 1) << name;
  }
}

TEST(Generate, RefusesCountsBelowOne) {
  for (const std::string& name : schedule_names()) {
    expect_refused(request(name, 0, 4), {"--ranks", "0"});
    expect_refused(request(name, -2, 4), {"--ranks", "-2"});
    expect_refused(request(name, 2, 0), {"--microbatches", "0"});
    expect_refused(request(name, 2, 4, -1), {"--chunks", "-1"});
    expect_refused(request(name, 2, 4, 0, -3), {"--group", "-3"});
  }
}

TEST(Generate, RefusesWhatAScheduleHasNoUseFor) {
  for (const char* name :
       {"gpipe", "1f1b", "zb-h1", "zb-h2", "dualpipe", "chimera", "pipedream", "pipedream-2bw"}) {
    expect_refused(request(name, 2, 4, 2), {"--chunks", "2", name});
    expect_refused(request(name, 2, 4, 0, 2), {"--group", "2", name});
  }
  for (const char* name : {"zb-v", "v-half", "v-min", "dualpipe-v"}) {
    expect_refused(request(name, 2, 4, 1), {"--chunks", "1", name});
    expect_refused(request(name, 2, 4, 3), {"--chunks", "3", name});
  }
  expect_refused(request("looped-bfs", 2, 4, 2, 2), {"--group"});
  expect_refused(request("1F1B", 2, 4), {"--schedule", "1F1B", "1f1b", "zb-v"});
}

TEST(Generate, RefusesSizesThatTheConstructionCannotFill) {
  expect_refused(request("dualpipe", 3, 8), {"--ranks", "3", "even"});
  expect_refused(request("dualpipe", 4, 9), {"--microbatches", "9", "even"});
  expect_refused(request("dualpipe", 4, 6), {"--microbatches", "6", "8"});
  expect_refused(request("dualpipe-v", 4, 7), {"--microbatches", "7", "8"});
  expect_refused(request("chimera", 3, 6), {"--ranks", "3", "even"});
  expect_refused(request("chimera", 4, 6), {"--microbatches", "6", "4"});
  expect_refused(request("pipedream-2bw", 4, 3), {"--microbatches", "3", "4"});
  expect_refused(request("interleaved", 4, 8, 2, 9), {"--group", "9", "8"});
}

TEST(Generate, RefusesInterleavedGroupsThatDeadlock) {
  struct Case {
    int p, v, n, m;
  };
  for (const Case& c : {Case{4, 3, 4, 5}, Case{5, 2, 5, 7}, Case{3, 2, 1, 3}}) {
    expect_refused(request("interleaved", c.p, c.m, c.v, c.n),
                   {"--group", "--microbatches", "--chunks", "waits for", "rank "});
  }
}

TEST(Generate, WarnsOfInterleavedGroupsThatAreSlow) {
  EXPECT_TRUE(generate(request("interleaved", 2, 4, 2, 2)).warnings.empty());
  const Schedule slow = generate(request("interleaved", 2, 4, 2, 3));
  ASSERT_EQ(slow.warnings.size(), 1u);
  EXPECT_NE(slow.warnings[0].find("--group 3"), std::string::npos) << slow.warnings[0];
  EXPECT_EQ(validate(slow), slow.warnings);
}

TEST(Generate, InterleavedWithOneGroupFinishesForAnyNumberOfMicrobatches) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = 1; m <= 2 * p + 3; ++m) {
        EXPECT_NO_THROW(validate(generate(request("interleaved", p, m, v, m))));
      }
    }
  }
}

// Computations that take no time neither end before what they need nor fill gaps for ever.
TEST(Generate, FillsGapsForTimesOfZeroToo) {
  const std::vector<std::vector<double>> lists = {{0},          {1},    {1, 0, 1, 1}, {0, 1, 1, 1},
                                                  {1, 1, 1, 0}, {1e-9}, {0, 0, 1, 0}};
  for (const char* name : {"v-half", "v-min"}) {
    for (const int m : {1, 3, 8}) {
      for (const auto& forward : lists) {
        for (const auto& input : lists) {
          for (const auto& weight : lists) {
            Request asked = request(name, 4, m);
            asked.costs.forward = forward;
            asked.costs.backward_input = input;
            asked.costs.backward_weight = weight;
            EXPECT_NO_THROW(validate(generate(asked))) << name << " m=" << m;
          }
        }
      }
    }
  }
}

TEST(Generate, IsTheSameForTimesInAnyUnit) {
  for (const char* name : {"v-half", "v-min"}) {
    const auto lists = [&](double unit) {
      Request asked = request(name, 4, 8);
      asked.costs = times(unit, unit, unit, unit / 4);
      const Schedule schedule = generate(asked);
      std::string text;
      for (int rank = 0; rank < 4; ++rank) {
        text += list_of(schedule, rank);
      }
      return text;
    };
    const std::string expected = lists(1);
    for (const double unit : {0x1p-40, 0x1p-20, 0x1p30}) {  // powers of two: exact
      EXPECT_EQ(lists(unit), expected) << name << " in units of " << unit;
    }
  }
}

TEST(ForwardOnly, KeepsTheForwardsOfASchedule) {
  const Schedule forwards = forwards_of(generate(request("dualpipe", 2, 4)));
  EXPECT_EQ(list_of(forwards, 0), "0F0 1F2 0F1 1F3 ");
  EXPECT_TRUE(validate(forwards).empty());
}

// Groups of p micro-batches come around just in time: the only bubble is the way down.
TEST(ForwardOnly, IdlesOnlyForTheWay) {
  for (int p = 1; p <= 6; ++p) {
    for (int v = 1; v <= 3; ++v) {
      for (int m = p; m <= 3 * p; m += p) {
        const Schedule loop = generate_forward_only(Placement(Placement::Kind::loop, p, v, 1), m);
        EXPECT_NEAR(simulate(loop, {}).makespan, m + (p - 1.0) / v, 1e-9);
      }
    }
    // Of a V the last micro-batch has to come back up as well.
    const Schedule v = generate_forward_only(Placement(Placement::Kind::v, p, 2, 1), 3 * p);
    EXPECT_NEAR(simulate(v, {}).makespan, 3 * p + p - 1, 1e-9);
  }
}

TEST(ForwardOnly, WorksForEveryPlacementAndNumberOfMicrobatches) {
  for (const auto kind : {Placement::Kind::loop, Placement::Kind::v, Placement::Kind::mirrored}) {
    for (int p = 2; p <= 6; p += 2) {
      for (int v = 1; v <= (kind == Placement::Kind::mirrored ? 1 : 4); ++v) {
        for (int m = 1; m <= 2 * p + 3; ++m) {
          const Schedule schedule = generate_forward_only(Placement(kind, p, v, 2), m);
          EXPECT_TRUE(validate(schedule).empty());
          const LoweredSchedule lowered = lower(schedule);
          EXPECT_TRUE(validate(lowered).empty());
          EXPECT_EQ(lowered.activation_slots, std::vector<int>(p, 1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::schedule
