#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/bench.h"
#include "cli/bench_text.h"
#include "cli/command.h"
#include "cli/on_all_ranks.h"
#include "cli/train_flags.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// Flags that mean something only with, or only without, --synthetic.
const std::vector<std::string> synthetic_flags = {
    "--forward", "--backward-input", "--backward-weight", "--overlapped",
    "--latency", "--bytes",          "--bandwidth"};
const std::vector<std::string> model_flags = {
    "--init",      "--model",           "--layers",
    "--hidden",    "--heads",           "--vocab-size",
    "--data",      "--sequence-length", "--microbatch-size",
    "--zero",      "--data-parallel",   "--layers-per-stage",
    "--precision", "--memory-limit",    "--recompute",
    "--defer",     "--balance"};

// Times of synthetic stages; in milliseconds.
void add_synthetic_flags(CLI::App& app, BenchOptions& options) {
  schedule::Costs& costs = options.costs;
  app.add_flag("--synthetic", options.synthetic,
               "stages that take given times and compute nothing; else the model flags say what");
  app.add_option("--forward", costs.forward,
                 "ms of F of one rank's whole share; a comma list gives one per rank")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--backward-input", costs.backward_input, "ms of the input gradient")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--backward-weight", costs.backward_weight, "ms of the weight gradient")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--overlapped", costs.overlapped, "ms of an overlapped F&B pair; default F+B+W")
      ->delimiter(',');
  app.add_option("--latency", costs.latency, "ms of one hop; host: of the emulator's links")
      ->capture_default_str();
  app.add_option("--bytes", options.bytes, "bytes per hand-off")->capture_default_str();
  app.add_option("--bandwidth", options.bandwidth,
                 "bytes per ms of a link; host: of the emulator's; default: unlimited");
}

void add_measuring_flags(CLI::App& app, BenchOptions& options) {
  app.add_option("--data", options.train.data, "token shards or any files; default: random tokens");
  app.add_option("--repeat", options.repeat, "steps that are measured; medians are shown")
      ->capture_default_str();
  app.add_option("--format", options.format, "table or json")->capture_default_str();
  app.add_option("--timeout", options.train.timeout,
                 "seconds an action may take before the job ends")
      ->capture_default_str();
}

void refuse(const CLI::App& app, const std::vector<std::string>& flags, const char* reason) {
  for (const std::string& flag : flags) {
    if (app.get_option(flag)->count() > 0) {
      throw UsageError(fmt::format("{} {}", flag, reason));
    }
  }
}

int run_bench_command(const CLI::App& app, BenchOptions& options, const std::string& precision) {
  if (options.synthetic) {
    refuse(app, model_flags, "is a flag of the model, which --synthetic replaces: leave one out");
  } else {
    refuse(app, synthetic_flags, "is a flag of --synthetic, which was not given");
  }
  if (!(options.train.timeout > 0)) {
    throw UsageError(fmt::format("--timeout {}: must be above 0", options.train.timeout));
  }
  options.train.precision = parse_precision(precision);
  options.train.shuffle = false;
  on_all_ranks("bench", options.train.timeout, [&](Control& control) {
    const std::vector<BenchResult> results = run_bench(options, control);
    if (control.rank() == 0) {
      fmt::print("{}", options.format == "json"
                           ? to_json(results, options)
                           : to_table(results, options, std::thread::hardware_concurrency()));
    }
  });
  return 0;
}

}  // namespace

Command add_bench(CLI::App& main) {
  CLI::App* app = main.add_subcommand(
      "bench", "Runs a schedule on synthetic stages or a model, planned beside measured");
  const auto options = std::make_shared<BenchOptions>();
  const auto precision = std::make_shared<std::string>("fp32");
  add_synthetic_flags(*app, *options);
  add_model_flags(*app, options->train);
  add_pipeline_flags(*app, options->train, *precision);
  add_measuring_flags(*app, *options);
  return {app, [app, options, precision] { return run_bench_command(*app, *options, *precision); }};
}

}  // namespace pipetrain
