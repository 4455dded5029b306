#ifndef PIPETRAIN_SANITIZE  // MPI's own reports would drown a sanitizer's

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/program.h"

// `pipetrain eval`, and `train --validation`, as programs.

namespace pipetrain::test {
namespace {

const std::string fixture = std::string(PIPETRAIN_TEST_DATA) + "/gpt2_l8_c32";
const std::string eval_fixture =
    fmt::format("eval {0} --data {0}/tokens.bin --microbatch-size 2 ", fixture);

Result eval_on_ranks(int ranks, const std::string& flags, const std::string& directory) {
  return Process(on_ranks(ranks, pipetrain(words(eval_fixture + flags))), directory,
                 mpi_environment())
      .wait();
}

// Fault 42: the loss is printed once, by whoever has it, also where that is rank 0's second chunk.
TEST(Eval, PrintsTheLossOnceWhateverTheSpread) {
  const TemporaryDirectory directory;
  const Result alone = run_pipetrain(eval_fixture + "--batches 8 --format json", directory.path());
  ASSERT_EQ(alone.code, 0) << alone.err;
  const auto expected = nlohmann::json::parse(alone.out);
  const double loss = expected["loss"];
  EXPECT_NEAR(loss, 5.671987289630866, 1e-5 * 5.7);
  EXPECT_DOUBLE_EQ(expected["perplexity"].get<double>(), std::exp(loss));
  EXPECT_EQ(expected["tokens"], 8 * 2 * 32);
  EXPECT_EQ(expected["tokens_available"], 5121);
  EXPECT_EQ(expected["microbatches"], 8);
  EXPECT_EQ(expected["device"], device_kind);

  const Result json = eval_on_ranks(
      4, "--batches 8 --format json --schedule zb-v --data-parallel 2", directory.path());
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out)["loss"], expected["loss"]);
  const Result table =
      eval_on_ranks(2, "--batches 8 --schedule dualpipe --precision bf16", directory.path());
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_PRED2(contains, table.out, "loss:       5.6");
  EXPECT_PRED2(contains, table.out, "perplexity: 29");
  EXPECT_PRED2(contains, table.out, "tokens:     512 of 5121, in 8 micro-batches");
  EXPECT_PRED2(contains, table.err, "memory of rank 1: ");
}

TEST(Eval, WrongInputIsRefusedByItsFlag) {
  const TemporaryDirectory directory;
  write_text(directory, "short", 20);
  const std::string eval = "eval " + fixture + " --data ";
  const struct {
    std::string arguments;
    int code;
    std::vector<std::string> parts;
  } cases[] = {
      {"eval", 2, {"CHECKPOINT is missing"}},
      {"eval " + fixture, 2, {"--data is missing"}},
      {"eval absent --data short", 2, {"CHECKPOINT absent"}},
      {eval + "absent", 2, {"--data absent"}},
      {eval + "short", 2, {"--data", "20 tokens", "33"}},
      {eval + "short --sequence-length 33", 2, {"--sequence-length 33"}},
      {eval + "short --sequence-length 8 --batches 0", 2, {"--batches 0"}},
      {eval + "short --sequence-length 8 --batches -1", 2, {"--batches"}},
      {eval + "short --sequence-length 8 --schedule gpip", 2, {"--schedule"}},
      {eval + "short --sequence-length 8 --schedule auto", 2, {"--schedule auto", "csv:FILE"}},
      {eval + "short --sequence-length 8 --format svg", 2, {"--format svg"}},
      {eval + "short --sequence-length 8 --layers-per-stage 4", 2, {"--layers-per-stage"}},
      {eval + "short --sequence-length 8 --data-parallel 2", 2, {"--data-parallel 2"}},
      {eval + "short --sequence-length 8 --steps 4", 2, {"--steps"}},
      {eval + "short --sequence-length 8 --memory-limit 1e-6", 3, {"--memory-limit", "total"}},
  };
  std::vector<Arguments> commands;
  for (const auto& refused : cases) {
    commands.push_back(pipetrain(words(refused.arguments)));
  }
  const std::vector<Result> results = run_all(commands, directory.path());
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(cases[i].arguments);
    expect_refused(results[i], cases[i].code, cases[i].parts);
  }
}

// Fault 7: losses of a run with validation are those of a run without.
TEST(Validation, StandsInTheMetricsOfTheStepsItFollowed) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  write_text(directory, "held_out", 500);
  const std::string train =
      tiny_model + "--data text --steps 5 --schedule interleaved --learning-rate 1e-2 ";
  const Result without = train_on_ranks(2, train + "--run-dir without", directory.path());
  ASSERT_EQ(without.code, 0) << without.err;
  const Result with = train_on_ranks(
      2, train + "--run-dir with --validation held_out --validation-every 2 --export model",
      directory.path());
  ASSERT_EQ(with.code, 0) << with.err;
  EXPECT_EQ(losses(directory.file("with")), losses(directory.file("without")));
  const std::vector<nlohmann::json> steps = read_metrics(directory.file("with"));
  ASSERT_EQ(steps.size(), 5u);
  for (const int step : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(steps[size_t(step) - 1].contains("validation_loss"), step % 2 == 0 || step == 5)
        << "step " << step;
  }
  EXPECT_PRED2(contains, with.err, "validation: 496 of 500 tokens");
  EXPECT_PRED2(contains, with.err, "before step 1: 496 tokens");
  EXPECT_PRED2(contains, with.out, "validation: ");
  EXPECT_PRED2(contains, read_file(directory.file("with/log.txt")), "after step 4: 496 tokens");

  const Result eval = run_pipetrain("eval model --data held_out --format json", directory.path());
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(eval.out)["loss"], steps.back()["validation_loss"]);
}

TEST(Validation, WrongFilesAreRefusedBeforeAnythingIsWritten) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  write_text(directory, "short", 8);
  write_text(directory, "middle", 1000);
  write_file(directory.file("shard"), shard(std::vector<int>(100, 7)));
  const std::vector<std::string> before = listing(directory.path());
  const std::string train = "train " + tiny_model + "--data text --steps 1 --run-dir run ";
  const struct {
    std::string flags;
    std::vector<std::string> parts;
  } cases[] = {
      {"--validation absent", {"--validation absent"}},
      {"--validation short", {"--validation", "8 tokens", "9"}},
      {"--validation shard", {"--validation shard", "one kind"}},
      {"--validation middle --microbatch-size 200 --microbatches 1",
       {"--validation", "1000 tokens", "1601"}},
      {"--validation-every 2", {"--validation-every 2", "--validation FILE"}},
      {"--validation-batches 2", {"--validation-batches 2", "--validation FILE"}},
  };
  std::vector<Arguments> commands;
  for (const auto& refused : cases) {
    commands.push_back(pipetrain(words(train + refused.flags)));
  }
  const std::vector<Result> results = run_all(commands, directory.path());
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(cases[i].flags);
    expect_refused(results[i], 2, cases[i].parts);
  }
  EXPECT_EQ(listing(directory.path()), before);
}

// Fault 11: a peer stops, and the others wait for ever: here while they evaluate.
void expect_stopped_rank_ends(const std::string& command) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  write_text(directory, "large", 30'000'000);
  Process process(on_ranks(2, pipetrain(words(command + " --timeout 3"))), directory.path(),
                  mpi_environment());
  process.wait_for_error_text("evaluation: ");
  send_signal(process.rank(1), SIGSTOP);
  const Result result = process.wait();
  EXPECT_EQ(result.code, 4) << result.err;
  for (const char* part : {"no progress for 3 s (--timeout)", "forward only", "waits for rank 1"}) {
    EXPECT_PRED2(contains, result.err, part);
  }
}

TEST(Validation, ARankThatStopsDuringItEndsTheJob) {
  expect_stopped_rank_ends("train --data text --steps 1 --validation large " + tiny_model);
}

TEST(SweepValidation, ARankThatStopsDuringEvalEndsTheJob) {
  expect_stopped_rank_ends(
      fmt::format("eval {} --data large --microbatch-size 4 --sequence-length 8", fixture));
}

}  // namespace
}  // namespace pipetrain::test

#endif  // PIPETRAIN_SANITIZE
