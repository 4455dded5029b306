#include <fmt/format.h>

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <thread>

#include "cli/colour.h"
#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/on_all_ranks.h"
#include "cli/train_flags.h"
#include "cli/train_summary.h"
#include "pipetrain/error.h"
#include "pipetrain/train/train_config.h"
#include "pipetrain/train/trainer.h"

namespace pipetrain {
namespace {

// Flags whose text has to be read by the config's own parsers.
struct TrainFlags {
  TrainConfig config;
  std::string precision = "fp32";
  std::string lr_schedule = "constant";
  std::string shuffle = "on";

  void finish();
};

void TrainFlags::finish() {
  config.precision = parse_precision(precision);
  config.lr_schedule = parse_lr_schedule(lr_schedule);
  if (shuffle != "on" && shuffle != "off") {
    throw UsageError("--shuffle " + shuffle + ": must be on or off");
  }
  config.shuffle = shuffle == "on";
  config.check();
}

void add_optimizer_flags(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--steps", config.steps, "optimizer steps")->capture_default_str();
  app.add_option("--learning-rate", config.learning_rate, "peak")->capture_default_str();
  app.add_option("--lr-schedule", flags.lr_schedule, "constant, cosine or linear")
      ->capture_default_str();
  app.add_option("--warmup-steps", config.warmup_steps, "linear warm-up")->capture_default_str();
  app.add_option("--min-learning-rate", config.min_learning_rate,
                 "which cosine and linear reach after the last step")
      ->capture_default_str();
  app.add_option("--beta1", config.beta1, "AdamW")->capture_default_str();
  app.add_option("--beta2", config.beta2, "AdamW")->capture_default_str();
  app.add_option("--epsilon", config.epsilon, "AdamW")->capture_default_str();
  app.add_option("--weight-decay", config.weight_decay, "of matrices")->capture_default_str();
  app.add_option("--grad-clip", config.grad_clip,
                 "largest gradient norm; 0: no clipping; default: 1, with pipedream 0 (no other "
                 "value: its stages are updated one by one)");
  app.add_option("--seed", config.seed, "of weights and shuffling")->capture_default_str();
}

void add_data_and_output_flags(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--data", config.data, "token shards, or any files as bytes");
  app.add_option("--shuffle", flags.shuffle, "on or off")->capture_default_str();
  app.add_option("--validation", config.validation,
                 "files for the validation loss, read in order: before the first step and after "
                 "the last one");
  app.add_option("--validation-every", config.validation_every,
                 "validate after every so many steps too");
  app.add_option("--validation-batches", config.validation_batches,
                 "micro-batches of the files that are read, at most; default: all");
  app.add_option("--run-dir", config.run_dir, "directory for metrics.jsonl and log.txt");
  app.add_option("--trace", config.trace, "Chrome trace (JSON) of the last step");
  app.add_option("--dump-gradients", config.dump_gradients,
                 "safetensors file: gradients of step 1, before clipping (not with pipedream)");
  app.add_option("--export", config.export_dir, "Hugging Face directory, written at the end");
  app.add_option("--timeout", config.timeout, "seconds an action may take before the job ends")
      ->capture_default_str();
}

int run_train(TrainFlags& flags, const CLI::App& main) {
  flags.config.config_file = given_config_file(main);
  flags.finish();
  on_all_ranks("train", flags.config.timeout, [&](Control& control) {
    const TrainReport report = train(flags.config, control);
    if (control.rank() == 0) {
      fmt::print("{}", train_summary(flags.config, report, wants_colour(),
                                     std::thread::hardware_concurrency()));
    }
  });
  return 0;
}

}  // namespace

Command add_train(CLI::App& main) {
  CLI::App* app =
      main.add_subcommand("train", "Trains a GPT, one pipeline stage or several chunks per rank");
  const auto flags = std::make_shared<TrainFlags>();
  add_model_flags(*app, flags->config);
  add_pipeline_flags(*app, flags->config, flags->precision);
  add_optimizer_flags(*app, *flags);
  add_data_and_output_flags(*app, *flags);
  return {app, [flags, &main] { return run_train(*flags, main); }};
}

}  // namespace pipetrain
