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
        const LoweredSchedule lowered = lower(schedule);
        const Schedule parsed = parse_csv(to_csv(lowered), "text");
        expect_same(parsed, schedule, what + ", lowered");
        EXPECT_EQ(to_csv(lower(parsed)), to_csv(lowered)) << what;
        if (microbatches > 1) {  // the cells do not tell a delayed update from an ordinary one
          const bool every = schedule.update == Update::every_backward;
          EXPECT_EQ(parsed.update, every ? Update::every_backward : Update::step) << what;
        }
        const Schedule forwards = forwards_of(schedule);
        const Schedule forwards_parsed = parse_csv(to_csv(lower(forwards)), "text");
        expect_same(forwards_parsed, forwards, what + ", forwards");
        EXPECT_TRUE(forwards_parsed.forward_only) << what;
        EXPECT_EQ(to_csv(lower(forwards_parsed)), to_csv(lower(forwards))) << what;
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
  EXPECT_THROW(read_csv("absent.csv"), UsageError);
  expect_refused("0F0,0B0\n\n1F0,1B0\n", "line 2: rank 1 has no computation");
  expect_refused("0F0,0B0\n0RECV_F0\n", "line 2: rank 1 has no computation");
}

TEST(Csv, MissingComputationsAreNamed) {
  expect_refused("0F0,0F1,0B0\n", "line 1, cell 2 (0F1): there is no 0B1");
  expect_refused("0F0,0B0,0B1\n", "line 1, cell 3 (0B1): there is no 0F1");
  expect_refused("0F0,0I0\n", "line 1, cell 2 (0I0): there is no 0W0");
  expect_refused("0F0,0B0,0W1,0F1\n", "line 1, cell 3 (0W1): there is no 0I1");
  expect_refused("0F0,0B0,0F2,0B2\n",
                 "line 1, cell 3 (0F2): there is no 0F1, but the cells name 1 stages and 3 "
                 "micro-batches");
  expect_refused("0F999999,0B999999\n", "line 1, cell 1 (0F999999): there is no 0F0");
  expect_refused("0F0,0B0\n1F0,1B0,1F1,1B1\n", "line 2, cell 3 (1F1): there is no 0F1");
  expect_refused("0F0,0B0\n2F0,2B0\n", "line 1, cell 1 (0F0): there is no 1F0");
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

// Fault 30: a validator that accepts a wrong order.
TEST(Csv, WrongOrdersNameLineAndCell) {
  expect_refused("0B0,0F0\n", "file.csv: line 1, cell 1 (0B0): 0F0 does not stand before it");
  expect_refused("0F0,,0W0,0I0\n", "line 1, cell 3 (0W0): W without I");
  expect_refused("0F0,0BW0,0F1,0W1,0B1\n", "line 1, cell 4 (0W1): W without I");
  expect_refused("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n",
                 "line 2, cell 2 (1F0): its input is overtaken: what line 1, cell 2 (0F1) makes");
  // Rank 0 wants the gradient before it sends what the gradient is made from.
  expect_refused("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
                 "the lists deadlock: line 1, cell 2 (0B0) waits for 1B0 of rank 1; line 2, cell 2 "
                 "(1F1) waits for 0F1 of rank 0");
}

const std::string kSender = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1";
const std::string kReceiver = "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1";

// The two lines with `from` replaced by `to` in the sender's or the receiver's.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kSender + "\n" + kReceiver + "\n";
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CsvCommunication, CompleteTransfersAreAccepted) {
  EXPECT_NO_THROW(parse_csv(with("0F0", "0F0"), "text"));
  EXPECT_NO_THROW(parse_csv(with("0SEND_F1,0RECV_B0", "0SEND_F1,,0UNSHARD,0RECV_B0"), "text"));
}

TEST(CsvCommunication, WhatIsDroppedIsNamed) {
  expect_refused(with(",0SEND_F1", ""),
                 "line 2, cell 3 (1RECV_F1): there is no 0SEND_F1 on line 1");
  expect_refused(with("1RECV_F1,", ""),
                 "line 1, cell 4 (0SEND_F1): there is no 1RECV_F1 on line 2");
  expect_refused(with(",1SEND_B1", ""),
                 "line 1, cell 7 (0RECV_B1): there is no 1SEND_B1 on line 2");
  expect_refused(with(",0RECV_B1", ""),
                 "line 2, cell 8 (1SEND_B1): there is no 0RECV_B1 on line 1");
  expect_refused("0F0,0F1,0SEND_F1,0B0,0B1\n1F0,1RECV_F1,1F1,1B0,1B1\n",
                 "line 2, cell 4 (1B0): there is no 1SEND_B0 on line 2");
}

TEST(CsvCommunication, WhatStandsOnTheWrongSideOfAComputationIsNamed) {
  expect_refused(with("0F1,0SEND_F1", "0SEND_F1,0F1"),
                 "line 1, cell 3 (0SEND_F1): it stands before what it sends, line 1, cell 4 (0F1)");
  expect_refused(with("1RECV_F1,1B0,1SEND_B0,1F1", "1F1,1B0,1SEND_B0,1RECV_F1"),
                 "line 2, cell 6 (1RECV_F1): it stands behind what needs it, line 2, cell 3 (1F1)");
  expect_refused(with("1B0,1SEND_B0", "1SEND_B0,1B0"),
                 "line 2, cell 4 (1SEND_B0): it stands before");
  expect_refused(with("0RECV_B0,0B0", "0B0,0RECV_B0"),
                 "line 1, cell 6 (0RECV_B0): it stands behind");
}

TEST(CsvCommunication, WrongStagesAndMicrobatchesAreNamed) {
  expect_refused(with("0SEND_F1", "1SEND_F1"), "line 1, cell 4 (1SEND_F1): it belongs to rank 1");
  expect_refused(with("0SEND_F1", "2SEND_F1"), "cell 4 (2SEND_F1): the computations name 2 stages");
  expect_refused(with("0SEND_F1", "0SEND_F2"), "(0SEND_F2): the computations name 2 micro-batches");
  expect_refused(with("0SEND_F1", "0SEND_F0"), "cell 4 (0SEND_F0): duplicate of line 1, cell 2");
  expect_refused(with("0SEND_F1", "0SEND_B1"),
                 "(0SEND_B1): stage 0 is the first; there is nothing");
  expect_refused(with("1SEND_B1", "1SEND_F1"), "(1SEND_F1): stage 1 is the last; there is nothing");
  expect_refused("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n",
                 "cell 2 (0SEND_F0): stage 1 is on the same rank; nothing is exchanged");
  expect_refused("0F0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0\n",
                 "line 1, cell 3 (0RECV_B0): the file has no backward passes");
}

TEST(CsvCommunication, MessagesKeepTheirOrder) {
  expect_refused(
      "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n" + kReceiver + "\n",
      "line 2, cell 1 (1RECV_F0): line 1, cell 3 (0SEND_F1) is sent before line 1, cell 4");
}

TEST(CsvCommunication, RendezvousThatDeadlockAreRefused) {
  expect_refused(
      "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      "the lists deadlock with rendezvous sends: line 1, cell 4 (0RECV_B0) waits for 1SEND_B0 of "
      "rank 1; line 2, cell 3 (1RECV_F1) waits for 0SEND_F1 of rank 0");
}

TEST(CsvCommunication, EveryTransferOfEveryScheduleIsNeeded) {
  for (const std::string& name : schedule_names()) {
    const LoweredSchedule lowered = lower(generate(request(name, 4, 8)));
    LoweredSchedule changed = lowered;
    for (size_t rank = 0; rank < 4; ++rank) {
      for (size_t i = 0; i < lowered.ranks[rank].size(); ++i) {
        if (is_send(lowered.ranks[rank][i].action.kind) ||
            is_receive(lowered.ranks[rank][i].action.kind)) {
          std::vector<LoweredAction>& list = changed.ranks[rank];
          list.erase(list.begin() + std::ptrdiff_t(i));
          EXPECT_THROW(parse_csv(to_csv(changed), "text"), UsageError)
              << name << " without " << to_string(lowered.ranks[rank][i].action);
          list = lowered.ranks[rank];
        }
      }
    }
  }
}

// Fault 20: a weight gradient that runs after the reduction.
TEST(CsvCommunication, UpdatesStandBehindTheGradients) {
  EXPECT_EQ(parse_csv("0F0,0B0,0F1,0B1,0REDUCE_GRAD,OPTIMIZER_STEP\n", "t").update, Update::step);
  EXPECT_EQ(parse_csv("0F0,0B0,OPTIMIZER_STEP,0F1,0B1,OPTIMIZER_STEP\n", "t").update,
            Update::every_backward);
  expect_refused("0F0,0I0,0F1,0B1,0REDUCE_GRAD,0W0\n", "line 1, cell 6 (0W0): no 0REDUCE_GRAD");
  expect_refused("0F0,0B0,0REDUCE_GRAD,0F1,0B1,0REDUCE_GRAD\n",
                 "cell 6 (0REDUCE_GRAD): stage 0 is reduced at line 1, cell 3");
  expect_refused("0F0,0B0,OPTIMIZER_STEP,0REDUCE_GRAD\n", "cell 2 (0B0): no 0REDUCE_GRAD");
  expect_refused("0F0,0REDUCE_GRAD,0B0\n", "cell 2 (0REDUCE_GRAD): no gradient of stage 0");
  expect_refused("0F0,1REDUCE_GRAD,0B0\n", "cell 2 (1REDUCE_GRAD): rank 0 does not hold stage 1");
  expect_refused("0F0,0B0,OPTIMIZER_STEP,0F1,0B1\n", "cell 5 (0B1): there is no OPTIMIZER_STEP");
  expect_refused("0F0,OPTIMIZER_STEP,0B0\n", "cell 2 (OPTIMIZER_STEP): no gradient stands before");
  expect_refused("0F0,0B0,OPTIMIZER_STEP\n1F0,1B0\n",
                 "line 2: OPTIMIZER_STEP stands here otherwise");
  expect_refused("0F0,0B0\n1F0,1B0,1REDUCE_GRAD\n", "line 2: REDUCE_GRAD stands here otherwise");
  expect_refused("0F0,0F1,0F2,0B0,0B1,OPTIMIZER_STEP,0B2,OPTIMIZER_STEP\n",
                 "line 1: 2 cells are OPTIMIZER_STEP");
}

std::string fixture(const std::string& name) {
  const std::string path = std::string(PIPETRAIN_SHARED_DIR) + "/fixtures/pytorch_csv/" + name;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(FromSharedCsv, DualPipeVOfPyTorchIsOurs) {
  const Schedule schedule = parse_csv(fixture("dualpipev_4rank_10mb.csv"), "fixture");
  EXPECT_EQ(schedule.placement.kind(), Placement::Kind::v);
  EXPECT_EQ(schedule.placement.ranks(), 4);
  EXPECT_EQ(schedule.placement.microbatches(), 10);
  EXPECT_NO_THROW(validate(schedule));
  // 6m + 2(p-1) chunk units, as for every dualpipe-v.
  EXPECT_DOUBLE_EQ(simulate(schedule, unit_chunks(2)).makespan, 66);
}

TEST(FromSharedCsv, OlderDialectIsReadAsSplitBackwards) {
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
