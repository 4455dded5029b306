#include "pipetrain/schedule/csv.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "pipetrain/error.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/schedule/validate.h"
#include "support.h"

namespace pipetrain::schedule {
namespace {

// The message with which the text is refused; fails where it is accepted.
std::string refusal(const std::string& text) {
  try {
    parse_csv(text, "file.csv");
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

void expect_refused(const std::string& text, const std::string& message) {
  const std::string refused = refusal(text);
  EXPECT_NE(refused.find(message), std::string::npos) << "'" << refused << "' for:\n" << text;
  EXPECT_NE(refused.find("file.csv"), std::string::npos) << refused;
}

void expect_same(const Schedule& parsed, const Schedule& schedule, const std::string& what) {
  EXPECT_EQ(parsed.ranks, schedule.ranks) << what;
  const Placement& placement = schedule.placement;
  ASSERT_EQ(parsed.placement.stages(), placement.stages()) << what;
  ASSERT_EQ(parsed.placement.microbatches(), placement.microbatches()) << what;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    for (int microbatch = 0; microbatch < placement.microbatches(); ++microbatch) {
      ASSERT_EQ(parsed.placement.owner(stage, microbatch), placement.owner(stage, microbatch))
          << what << ", stage " << stage << ", micro-batch " << microbatch;
    }
  }
}

TEST(Csv, EveryScheduleComesBackUnchanged) {
  int schedules = 0;
  for (const std::string& name : schedule_names()) {
    for (const int ranks : {1, 2, 4, 6}) {
      for (const int microbatches : {1, 5, 12}) {
        Schedule schedule = {"", Placement(Placement::Kind::loop, 1, 1, 1), {}, {}, {}, {}};
        try {
          schedule = generate(request(name, ranks, microbatches));
        } catch (const UsageError&) {
          continue;  // the schedule refuses these numbers
        }
        const std::string what = name + " p=" + std::to_string(ranks);
        expect_same(parse_csv(to_csv(schedule), "text"), schedule, what);
        expect_same(parse_csv(to_csv(lower(schedule)), "text"), schedule, what + ", lowered");
        ++schedules;
      }
    }
  }
  EXPECT_GT(schedules, 100);
}

TEST(Csv, LoweredCellsNameTheTransfers) {
  const std::string text = to_csv(lower(generate(request("gpipe", 2, 1))));
  for (const char* cell : {"0F0", "0SEND_F0", "1RECV_F0", "1SEND_B0", "0RECV_B0"}) {
    EXPECT_NE(text.find(cell), std::string::npos) << cell << " in:\n" << text;
  }
}

TEST(Csv, BothDialectsMeanTheSame) {
  const std::string today = "0F0,0I0,0W0,0F1,0B1\n";
  const std::string older = "0F0,0B0,0W0,0F1,0BW1\n";
  EXPECT_EQ(parse_csv(older, "older").ranks, parse_csv(today, "today").ranks);
  EXPECT_EQ(to_csv(parse_csv(older, "older")), today);
}

TEST(Csv, BlanksLineEndsIdleStepsAndAByteOrderMarkChangeNothing) {
  const std::string text = "0F0,1F0,1B0,0B0\n";
  EXPECT_EQ(to_csv(parse_csv("\xEF\xBB\xBF 0F0 ,,1F0,\t1B0,0B0,,\r\n\r\n", "text")), text);
}

TEST(Csv, OverlappedPairsAreReadAndWritten) {
  const std::string text = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n";
  const Schedule schedule = parse_csv(text, "text");
  ASSERT_EQ(schedule.ranks[0].size(), 4u);
  EXPECT_TRUE(schedule.ranks[0][1].overlaps_next);
  EXPECT_EQ(schedule.ranks[0][2], (Action{Kind::backward, 0, 0}));
  EXPECT_EQ(to_csv(schedule), text);
}

TEST(Csv, PlacementIsReadOffTheCells) {
  EXPECT_EQ(parse_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n", "t").placement.kind(),
            Placement::Kind::loop);
  EXPECT_EQ(parse_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "t").placement.kind(),
            Placement::Kind::v);
  EXPECT_EQ(parse_csv("0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n", "t").placement.kind(),
            Placement::Kind::mirrored);
}

TEST(Csv, AFileOfForwardsIsForwardOnly) {
  EXPECT_TRUE(parse_csv("0F0,0F1\n1F0,1F1\n", "t").forward_only);
  EXPECT_FALSE(parse_csv("0F0,0B0\n", "t").forward_only);
}

TEST(Csv, FaultsNameLineAndCell) {
  expect_refused("0F0,0B0\n1F0,1X0\n", "line 2, cell 2 (1X0): unknown letters 'X'");
  expect_refused("0F0,hello\n", "line 1, cell 2 (hello)");
  expect_refused("0F0,F0\n", "line 1, cell 2 (F0): the stage is missing");
  expect_refused("0F\n", "line 1, cell 1 (0F): the micro-batch is missing");
  expect_refused("0F-1\n", "line 1, cell 1 (0F-1): the micro-batch is negative");
  expect_refused("-1F0\n", "line 1, cell 1 (-1F0): the stage is negative");
  expect_refused("0F1x\n", "line 1, cell 1 (0F1x): the micro-batch is missing or not a number");
  expect_refused("0F99999999999999999999\n", "the micro-batch is too large");
  expect_refused("1000000F0\n", "the stage is too large; the largest is 999999");
  expect_refused("0F0,0B0,0F0\n", "line 1, cell 3 (0F0): duplicate of line 1, cell 1");
  expect_refused("0F0,0I0,0W0,0W0\n", "line 1, cell 4 (0W0): duplicate of line 1, cell 3");
  expect_refused("0F0,(0F1;0B0)OVERLAP\n", "line 1, cell 2 ((0F1;0B0)OVERLAP): an overlapped pair");
  expect_refused("0F0,(0F1)OVERLAP_F_B\n", "an overlapped pair has 2 actions; here are 1");
  expect_refused("0F0,(0B0;0F1)OVERLAP_F_B\n", "a forward and then a backward");
  expect_refused("\"0F0\",0B0\n", "line 1, cell 1 (\"0F0\")");
}

TEST(Csv, EmptyFilesAndRanksAreRefused) {
  expect_refused("", "the file is empty");
  expect_refused("\n \n", "the file is empty");
  expect_refused("0F0,0B0\n\n1F0,1B0\n", "line 2: rank 1 has no computation");
  expect_refused("0F0,0B0\n0RECV_F0\n", "line 2: rank 1 has no computation");
}

TEST(Csv, MissingComputationsAreNamed) {
  expect_refused("0F0,0F1,0B0\n", "line 1, cell 2 (0F1): there is no 0B1");
  expect_refused("0F0,0B0,0B1\n", "line 1, cell 3 (0B1): there is no 0F1");
  expect_refused("0F0,0I0\n", "line 1, cell 2 (0I0): there is no 0W0");
  expect_refused("0F0,0B0,0W1,0F1\n", "line 1, cell 3 (0W1): there is no 0I1");
  expect_refused("0F0,0B0,0F2,0B2\n",
                 "0F1 is missing; the cells name 1 stages and 3 micro-batches");
  expect_refused("0F999999,0B999999\n", "0F0 is missing");
}

TEST(Csv, MixedDialectsAreRefused) {
  expect_refused("0F0,0I0,0W0,0F1,0BW1\n",
                 "line 1, cell 2 (0I0): I is today's dialect, but line 1, "
                 "cell 5 (0BW1) is the older one");
  expect_refused("0F0,0B0,0F1,0BW1\n", "line 1, cell 2 (0B0): no 0W0 for it");
  expect_refused("0F0,0BW0,0W0\n", "stage 0, micro-batch 0 also has W");
}

TEST(Csv, StagesThatFitNoPlacementAreRefused) {
  expect_refused("1F0,1B0\n0F0,0B0\n",
                 "line 1, cell 1 (1F0): stage 1 is on rank 0, which fits no "
                 "placement; with 2 ranks and 2 stages loop puts it on rank "
                 "1");
  expect_refused("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n",
                 "line 1, cell 2 (1F0): stage 1 is on rank 0");
  expect_refused("0F0,0B0,2F0,2B0\n1F0,1B0\n", "3 stages on 2 lines");
}

TEST(Csv, WrongOrdersAreForTheValidatorToFind) {
  const Schedule schedule = parse_csv("0B0,0F0\n", "text");
  EXPECT_THROW(validate(schedule), UsageError);
}

std::string fixture(const std::string& name) {
  const std::string path = std::string(PIPETRAIN_SHARED_DIR) + "/fixtures/pytorch_csv/" + name;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(SharedCsv, DualPipeVOfPyTorchIsOurs) {
  const Schedule schedule = parse_csv(fixture("dualpipev_4rank_10mb.csv"), "fixture");
  EXPECT_EQ(schedule.placement.kind(), Placement::Kind::v);
  EXPECT_EQ(schedule.placement.ranks(), 4);
  EXPECT_EQ(schedule.placement.microbatches(), 10);
  EXPECT_NO_THROW(validate(schedule));
  // 6m + 2(p-1) chunk units, as for every dualpipe-v.
  EXPECT_DOUBLE_EQ(simulate(schedule, unit_chunks(2)).makespan, 66);
}

TEST(SharedCsv, OlderDialectIsReadAsSplitBackwards) {
  const Schedule schedule = parse_csv(fixture("zb1p_2rank_2stagep_compute.csv"), "fixture");
  EXPECT_EQ(schedule.placement.kind(), Placement::Kind::loop);
  EXPECT_EQ(schedule.placement.chunks(), 2);
  EXPECT_EQ(schedule.placement.microbatches(), 8);
  for (const std::vector<Action>& actions : schedule.ranks) {
    EXPECT_EQ(std::count_if(actions.begin(), actions.end(),
                            [](const Action& action) { return action.kind == Kind::backward; }),
              0);
  }
  EXPECT_NO_THROW(validate(schedule));
  const Simulation simulation = simulate(schedule, unit_chunks(2));
  EXPECT_GE(simulation.makespan, 8 * 6);
  EXPECT_LE(simulation.makespan, 8 * 6 + 4);
}

}  // namespace
}  // namespace pipetrain::schedule
