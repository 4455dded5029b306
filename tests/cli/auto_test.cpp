#ifndef PIPETRAIN_SANITIZE  // MPI's own reports would drown a sanitizer's

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/program.h"

// `--schedule auto` and `--balance measured` of the program.

namespace pipetrain::test {
namespace {

const std::string flags = tiny_model + "--data text --microbatches 4 --steps 2 ";

TEST(AutoProgram, ItsPlanRunsAgainWithTheSameLosses) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const Result alone = run_pipetrain("train --run-dir alone " + flags, directory.path());
  ASSERT_EQ(alone.code, 0) << alone.err;
  const Result planned = train_on_ranks(
      2, flags + "--schedule auto --balance measured --run-dir planned", directory.path());
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_TRUE(contains(planned.out, "planned/plan.csv")) << planned.out;
  EXPECT_TRUE(contains(planned.out, "planned at the profile's times")) << planned.out;
  EXPECT_TRUE(contains(planned.err, "auto: chosen")) << planned.err;
  const Result again = train_on_ranks(2, flags + "--schedule csv:planned/plan.csv --run-dir again",
                                      directory.path());
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(losses(directory.file("planned")), losses(directory.file("alone")));
  EXPECT_EQ(losses(directory.file("again")), losses(directory.file("alone")));
}

TEST(AutoProgram, ALimitThatNoScheduleMeetsIsRefusedWithTheBudget) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const std::string limited =
      "--layers 16 --hidden 16 --heads 2 --sequence-length 8 --data text --schedule auto "
      "--run-dir run --memory-limit ";
  expect_refused(train_on_ranks(2, limited + "1e-4", directory.path()), 3,
                 {"--memory-limit", "activation slots", "total"});
  expect_refused(train_on_ranks(2, limited + "1e-6", directory.path()), 3,
                 {"--memory-limit", "profile"});
  EXPECT_EQ(listing(directory.path()), std::vector<std::string>{"text"});
}

TEST(AutoProgram, BenchRunsTheModelWithIt) {
  const TemporaryDirectory directory;
  const Result result =
      Process(on_ranks(2, pipetrain(words("bench --schedule auto --balance measured --repeat 1 "
                                          "--microbatches 2 --format json " +
                                          tiny_model))),
              directory.path(), mpi_environment())
          .wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["schedule"], "auto");
}

TEST(AutoProgram, FlagsThatContradictItAreRefused) {
  const TemporaryDirectory directory;
  const std::string train = "train --data text " + tiny_model;
  const auto refused = [&](const std::string& arguments, const std::vector<std::string>& parts) {
    expect_refused(run_pipetrain(train + arguments, directory.path()), 2, parts);
  };
  refused("--balance even", {"--balance even", "layers or measured"});
  refused("--balance measured --layers-per-stage 4",
          {"--balance measured", "--layers-per-stage 4"});
  refused("--schedule auto --group 2", {"--group 2", "auto"});
  write_text(directory, "text", 4000);
  refused("--schedule auto --chunks 65", {"--chunks 65", "64"});
  refused("--schedule auto --layers-per-stage 1,1,2", {"--layers-per-stage 1,1,2", "3 entries"});
}

}  // namespace
}  // namespace pipetrain::test

#endif  // PIPETRAIN_SANITIZE
