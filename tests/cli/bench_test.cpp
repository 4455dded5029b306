#ifndef PIPETRAIN_SANITIZE  // MPI's own reports would drown a sanitizer's

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/program.h"

// `pipetrain bench` as a program. Times are never compared with a clock, only with each other.

namespace pipetrain::test {
namespace {

// mpirun -n RANKS pipetrain bench ARGUMENTS
Result bench(int ranks, const std::string& arguments) {
  const TemporaryDirectory directory;
  return Process(on_ranks(ranks, pipetrain(words("bench " + arguments))), directory.path(),
                 mpi_environment())
      .wait();
}

const std::string short_times = "--synthetic --forward 3 --backward-input 2 --backward-weight 1 ";

TEST(Bench, SyntheticStagesTakeNoLessThanPlanned) {
  const Result result =
      bench(2, short_times + "--schedule zb-h1 --microbatches 4 --repeat 2 --format json");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["schedule"], "zb-h1");
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["chunks"], 1);
  EXPECT_EQ(json["microbatches"], 4);
  EXPECT_NEAR(json["makespan_planned"].get<double>(), 4 * 6 + 4, 1e-9);  // m(F+B+W) + F+B-W
  EXPECT_NEAR(json["bubble_planned"].get<double>(), 4. / 28, 1e-9);
  EXPECT_GE(json["makespan_measured"].get<double>(), 28 - 1);  // the ranks' clocks
  EXPECT_EQ(json["peak_activations"], json["activation_cap"]);
  EXPECT_EQ(json["activation_cap"], (std::vector<int>{2, 2}));
  EXPECT_GT(json["action_overhead_us"].get<double>(), 0);
  EXPECT_TRUE(json["hop_overhead_us"].is_number());
  EXPECT_GE(json["exposed_communication_ms"].get<double>(), 0);
  EXPECT_TRUE(json["tokens_per_second"].is_null());
}

TEST(Bench, LinksAreAsSlowAsTheFlagsSay) {
  const Result result = bench(
      2, short_times + "--microbatches 1 --latency 20 --bytes 5000 --bandwidth 500 --format json");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_NEAR(json["makespan_planned"].get<double>(), 2 * 6 + 2 * (20 + 10), 1e-9);
  EXPECT_GE(json["exposed_communication_ms"].get<double>(), 29);
  if (json["device"] == "host") {
    EXPECT_GE(json["makespan_measured"].get<double>(), 72 - 1);
  }
}

TEST(Bench, AllSchedulesAreComparedAndThoseThatRefuseAreNamed) {
  const Result result =
      bench(2, short_times + "--schedule all --microbatches 3 --repeat 1 --format json");
  ASSERT_EQ(result.code, 0) << result.err;
  std::vector<std::string> names;
  for (const nlohmann::json& json : nlohmann::json::parse(result.out)) {
    names.push_back(json["schedule"]);
  }
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-v", "pipedream", "auto"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
  EXPECT_EQ(std::count(names.begin(), names.end(), "dualpipe"), 0);
  EXPECT_NE(result.err.find("pipetrain: dualpipe left out: "), std::string::npos) << result.err;
}

TEST(Bench, TheModelIsPlannedWithItsOwnTimes) {
  const Result result = bench(2, tiny_model + "--microbatches 2 --repeat 2 --format json");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_GT(json["makespan_planned"].get<double>(), 0);
  EXPECT_GT(json["makespan_measured"].get<double>(), 0);
  EXPECT_EQ(json["peak_activations"], (std::vector<int>{2, 1}));
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);
}

TEST(Bench, TheTableNamesTheDevice) {
  const Result result = bench(2, short_times + "--microbatches 2 --repeat 1");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("1f1b"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("device: "), std::string::npos) << result.out;
}

TEST(Bench, RefusesFlagsThatMeanNothing) {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& arguments, const std::vector<std::string>& parts) {
    expect_refused(run_pipetrain("bench " + arguments, directory.path()), 2, parts);
  };
  refused("--synthetic --layers 4", {"--layers", "--synthetic"});
  refused(tiny_model + "--latency 3", {"--latency", "--synthetic"});
  refused("--synthetic --repeat 0", {"--repeat 0", "at least 1"});
  refused("--synthetic --format svg", {"--format svg", "json"});
  refused("--synthetic --forward 1,2,3", {"--forward", "3", "1"});
  refused("--synthetic --bytes 0", {"--bytes 0", "at least 1"});
  refused("--synthetic --bytes 4611686018427387904", {"--bytes", "at most 1e15"});
  refused("", {"--layers"});
}

TEST(Bench, AScheduleThatRefusesTheRanksIsRefusedOnce) {
  expect_refused(bench(3, short_times + "--schedule dualpipe"), 2, {"3", "even"});
}

}  // namespace
}  // namespace pipetrain::test

#endif
