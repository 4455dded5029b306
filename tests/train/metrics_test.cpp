#include "pipetrain/train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "pipetrain/train/log.h"
#include "pipetrain/train/run_directory.h"
#include "tests/train/temporary.h"

namespace pipetrain {
namespace {

using nlohmann::json;

StepMetrics some_metrics() {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = double(5.671987289630866f);
  metrics.grad_norm = 0.1 + 0.2;
  metrics.learning_rate = 1e-300;
  metrics.tokens = int64_t(1) << 40;
  metrics.step_seconds = 0.25;
  metrics.tokens_per_second = 4.0 / 3;
  metrics.bubble_planned = 3.0 / 11;
  metrics.bubble_measured = 0.3;
  metrics.peak_activations = {4, 3, 2, 1};
  metrics.activation_cap = {4, 3, 2, 1};
  metrics.device = "host";
  return metrics;
}

TEST(Metrics, NumbersReadBackWithTheSameBits) {
  const StepMetrics metrics = some_metrics();
  const json line = json::parse(to_json(metrics));
  EXPECT_EQ(line["step"].get<int64_t>(), metrics.step);
  EXPECT_EQ(line["loss"].get<double>(), metrics.loss);
  EXPECT_EQ(line["loss"].get<float>(), 5.671987289630866f);
  EXPECT_EQ(line["grad_norm"].get<double>(), metrics.grad_norm);
  EXPECT_EQ(line["learning_rate"].get<double>(), metrics.learning_rate);
  EXPECT_EQ(line["tokens"].get<int64_t>(), metrics.tokens);
  EXPECT_EQ(line["tokens_per_second"].get<double>(), metrics.tokens_per_second);
  EXPECT_EQ(line["bubble_planned"].get<double>(), metrics.bubble_planned);
  EXPECT_EQ(line["bubble_measured"].get<double>(), 0.3);
  EXPECT_EQ(line["activation_cap"].get<std::vector<int>>(), metrics.activation_cap);
  EXPECT_EQ(line["peak_activations"].get<std::vector<int>>(), metrics.peak_activations);
  EXPECT_EQ(line["device"].get<std::string>(), "host");
  EXPECT_TRUE(line["mfu"].is_null());
  EXPECT_FALSE(line.contains("note"));
}

TEST(Metrics, WhatIsNotFiniteIsNullWithANote) {
  StepMetrics metrics = some_metrics();
  metrics.loss = NAN;
  metrics.grad_norm = INFINITY;
  metrics.skipped = true;
  const json line = json::parse(to_json(metrics));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
  EXPECT_EQ(line["note"].get<std::string>(), "update skipped: loss nan, gradient norm inf");
}

TEST(Metrics, EveryLineIsInTheFileAtOnce) {
  const TemporaryDirectory directory;
  MetricsFile file(directory.file("metrics.jsonl"));
  file.write(some_metrics());
  file.write(some_metrics());
  const std::string line = to_json(some_metrics()) + "\n";
  EXPECT_EQ(read_file(directory.file("metrics.jsonl")), line + line);
  EXPECT_PRED2(contains, usage_error([] { MetricsFile("/dev/null/metrics.jsonl"); }), "--run-dir");
}

TEST(Metrics, ProgressIsOneLine) {
  EXPECT_EQ(progress_line(some_metrics(), 1000, 200),
            "step    3/1000  loss 5.6720  norm 0.300  1 tokens/s  bubble 30.0% (planned 27.3%)  3 "
            "min 20 s left");
  StepMetrics metrics = some_metrics();
  metrics.bubble_measured.reset();
  metrics.tokens_per_second = 123456;
  EXPECT_PRED2(contains, progress_line(metrics, 3, 0), "123.5k tokens/s  bubble n/a (planned");
}

TEST(Metrics, DurationsAreReadable) {
  EXPECT_EQ(duration(0.4), "0 s");
  EXPECT_EQ(duration(59.6), "1 min 00 s");
  EXPECT_EQ(duration(7500), "2 h 05 min");
  EXPECT_EQ(duration(273600), "3 d 04 h");
  EXPECT_EQ(duration(NAN), "0 s");
}

TEST(RunDirectory, IsCreatedWithItsParents) {
  const TemporaryDirectory directory;
  const RunDirectory run(directory.file("a/b"));
  EXPECT_TRUE(std::filesystem::is_directory(directory.file("a/b")));
  EXPECT_EQ(run.metrics_file(), directory.file("a/b/metrics.jsonl"));
}

TEST(RunDirectory, MetricsOfAnEarlierRunAreNotOverwritten) {
  const TemporaryDirectory directory;
  write_file(directory.file("metrics.jsonl"), "");  // of a run that failed before its first step
  write_file(directory.file("log.txt"), "old\n");
  { const RunDirectory run(directory.path()); }
  write_file(directory.file("metrics.jsonl"), "{}\n");
  EXPECT_PRED2(contains, usage_error([&] { RunDirectory run(directory.path()); }),
               "already holds the metrics of a run");
  EXPECT_EQ(read_file(directory.file("metrics.jsonl")), "{}\n");
  EXPECT_EQ(read_file(directory.file("log.txt")), "old\n");
}

TEST(RunDirectory, TwoRunsAtOnceAreRefused) {
  const TemporaryDirectory directory;
  {
    const RunDirectory first(directory.path());
    EXPECT_PRED2(contains, usage_error([&] { RunDirectory second(directory.path()); }),
                 "another run is writing there");
  }
  const RunDirectory next(directory.path());
}

TEST(RunDirectory, PathsThatCannotBeWrittenAreRefusedByTheirFlag) {
  const TemporaryDirectory directory;
  write_file(directory.file("file"), "x");
  EXPECT_PRED2(contains, usage_error([&] { RunDirectory run(directory.file("file/run")); }),
               "--run-dir");
  EXPECT_PRED2(contains,
               usage_error([&] { require_writable_directory(directory.file("file"), "--export"); }),
               "--export");
  EXPECT_PRED2(contains, usage_error([&] { require_writable_file(directory.path(), "--trace"); }),
               "is a directory");
  EXPECT_PRED2(contains, usage_error([&] { require_writable_file("/dev/null/x", "--trace"); }),
               "--trace /dev/null/x: /dev/null is no directory");
  require_writable_file(directory.file("new"), "--trace");
  require_writable_directory(directory.file("a/b"), "--export");
  EXPECT_FALSE(std::filesystem::exists(directory.file("new")));
  EXPECT_FALSE(std::filesystem::exists(directory.file("a")));
  require_writable_file("name_alone", "--trace");
}

TEST(Log, AFileThatTakesNoMoreIsToldOnce) {
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("/dev/full", directory.file("log.txt"));
  testing::internal::CaptureStderr();
  {
    Log log(directory.file("log.txt"), Log::Terminal::off);
    log.info("one");
    log.last_line("two");
  }
  const std::string told = testing::internal::GetCapturedStderr();
  const size_t first = told.find("log.txt cannot be written");
  EXPECT_NE(first, std::string::npos) << told;
  EXPECT_EQ(told.find("cannot be written", first + 20), std::string::npos) << told;
}

TEST(Log, LinesAreAppendedToTheFile) {
  const TemporaryDirectory directory;
  write_file(directory.file("log.txt"), "earlier\n");
  {
    Log log(directory.file("log.txt"), Log::Terminal::off);
    log.info("step {} is no format string");
    log.warning("disk nearly full");
    EXPECT_PRED2(contains, read_file(directory.file("log.txt")), "disk nearly full");
    log.last_line("SIGTERM: ended");
  }
  const std::string text = read_file(directory.file("log.txt"));
  EXPECT_EQ(text.substr(0, 8), "earlier\n");
  EXPECT_PRED2(contains, text, "info step {} is no format string\n");
  EXPECT_PRED2(contains, text, "warning: disk nearly full\n");
  EXPECT_PRED2(contains, text, "error SIGTERM: ended\n");
  EXPECT_PRED2(contains, usage_error([] { Log("/dev/null/log.txt", Log::Terminal::off); }),
               "--run-dir");
}

}  // namespace
}  // namespace pipetrain
