#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.h"
#include "cli/on_all_ranks.h"
#include "cli/train_flags.h"
#include "pipetrain/error.h"
#include "pipetrain/train/evaluate.h"

namespace pipetrain {
namespace {

struct EvalFlags {
  TrainConfig config;
  std::string precision = "fp32";
  std::string format = "table";
};

std::string to_table(const EvaluationReport& report) {
  const EvaluationResult& result = report.result;
  return fmt::format(
      "loss:       {:.6f}\n"
      "perplexity: {:.4f}\n"
      "tokens:     {} of {}, in {} micro-batches\n"
      "time:       {:.2f} s, {:.0f} tokens/s on {}\n",
      result.loss, result.perplexity(), result.targets, report.tokens, report.microbatches,
      result.seconds, double(result.targets) / result.seconds, report.device);
}

// Numbers read back with the same bits; what is not finite is null.
std::string to_json(const EvaluationReport& report) {
  const EvaluationResult& result = report.result;
  nlohmann::ordered_json json;
  json["loss"] = result.loss;
  json["perplexity"] = result.perplexity();
  json["tokens"] = result.targets;
  json["tokens_available"] = report.tokens;
  json["microbatches"] = report.microbatches;
  json["seconds"] = result.seconds;
  json["tokens_per_second"] = double(result.targets) / result.seconds;
  json["device"] = report.device;
  return json.dump(1) + "\n";
}

int run_eval(EvalFlags& flags) {
  if (flags.config.init.empty()) {
    throw UsageError(
        "CHECKPOINT is missing: pipetrain eval DIR --data FILE..., with a Hugging Face GPT-2 "
        "directory");
  }
  if (flags.format != "table" && flags.format != "json") {
    throw UsageError(fmt::format("--format {}: must be table or json", flags.format));
  }
  if (flags.config.validation_batches && *flags.config.validation_batches < 1) {
    throw UsageError(
        fmt::format("--batches {}: must be at least 1", *flags.config.validation_batches));
  }
  flags.config.precision = parse_precision(flags.precision);
  flags.config.check();
  on_all_ranks("eval", flags.config.timeout, [&](Control& control) {
    const EvaluationReport report = evaluate(flags.config, control, "CHECKPOINT");
    if (control.rank() == 0) {
      fmt::print("{}", flags.format == "json" ? to_json(report) : to_table(report));
    }
  });
  return 0;
}

}  // namespace

Command add_eval(CLI::App& main) {
  CLI::App* app = main.add_subcommand(
      "eval", "Mean loss and perplexity of a checkpoint on token files, forward only");
  const auto flags = std::make_shared<EvalFlags>();
  TrainConfig& config = flags->config;
  app->add_option("CHECKPOINT", config.init, "Hugging Face GPT-2 directory, as --export writes");
  app->add_option("--data", config.data, "token shards, or any files as bytes; read in order");
  app->add_option("--batches", config.validation_batches,
                  "at most so many micro-batches; default: all that the files fill");
  app->add_option("--sequence-length", config.sequence_length,
                  "tokens per sequence T; default: the model's");
  add_placement_flags(*app, config, flags->precision);
  app->get_option("--schedule")
      ->description("gpipe, 1f1b, ..., pipedream-2bw or csv:FILE: whose stages lie where");
  app->add_option("--microbatches", config.microbatches,
                  "micro-batches of a pass through the pipeline, at most; raised to its ranks")
      ->capture_default_str();
  app->add_option("--format", flags->format, "table or json")->capture_default_str();
  app->add_option("--timeout", config.timeout, "seconds an action may take before the job ends")
      ->capture_default_str();
  return {app, [flags] { return run_eval(*flags); }};
}

}  // namespace pipetrain
