#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/program.h"

// What links cost, as `pipetrain plan` predicts it.

namespace pipetrain::test {
namespace {

std::string planned(const std::string& flags) {
  const TemporaryDirectory directory;
  const Result result = run_pipetrain("plan --ranks 4 " + flags, directory.path());
  EXPECT_EQ(result.code, 0) << flags << ": " << result.err;
  return result.out;
}

const std::string wide_model =
    " --layers 16 --hidden 8192 --heads 64 --microbatch-size 1 --memory-limit 100000 ";

// A hand-off is b s h values of two bytes, v times per micro-batch and direction.
TEST(PlanLinks, HandOffsAreCountedWithAndWithoutTheWrapAround) {
  const std::string text = planned("--schedule interleaved --chunks 4 --microbatches 16" +
                                   wide_model + "--sequence-length 2048");
  EXPECT_PRED2(contains, text, "hand-off: 32.00 MiB");
  EXPECT_PRED2(contains, text,
               "240 transfers each way, 7.50 GiB (192, 6.00 GiB without the wrap-around hops)");
}

TEST(PlanLinks, AHandOffTakesItsBytesOverTheBandwidth) {
  const std::string text = planned("--schedule 1f1b --microbatches 16 --latency 0 --bandwidth 5e7" +
                                   wide_model + "--sequence-length 4096");
  EXPECT_PRED2(contains, text, "hand-off: 64.00 MiB and 1.34 ms");
}

// The v that the table marks for a link.
int best_chunks(const std::string& text, const std::string& link) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(link)) {
      std::istringstream columns(line.substr(link.size()));
      int chunks = 1;
      for (std::string column; columns >> column; ++chunks) {
        if (column.ends_with("*")) {
          return chunks;
        }
      }
    }
  }
  ADD_FAILURE() << "no best v for " << link << " in:\n" << text;
  return 0;
}

// More chunks pay while their messages take less time than the bubble that they save.
TEST(PlanLinks, OnASlowLinkTwoChunksCanLoseWhereTheyPayOnAFastOne) {
  const auto table = [](int hidden) {
    return planned(
        fmt::format("--schedule 1f1b --microbatches 64 --layers 32 --hidden {} --heads "
                    "8 --microbatch-size 4 --sequence-length 1024",
                    hidden));
  };
  const std::string narrow = table(128);
  EXPECT_EQ(best_chunks(narrow, "pcie4"), 1);
  EXPECT_GE(best_chunks(narrow, "nvlink"), 2);
  const std::string wide = table(1024);
  EXPECT_GE(best_chunks(wide, "pcie4"), 2);
  EXPECT_GT(best_chunks(wide, "nvlink"), best_chunks(wide, "pcie4"));
}

}  // namespace
}  // namespace pipetrain::test
