#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "cli/colour.h"
#include "cli/command.h"
#include "cli/train_summary.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/comm/environment.h"
#include "pipetrain/error.h"
#include "pipetrain/runtime/watchdog.h"
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

void add_model_flags(CLI::App& app, TrainConfig& config) {
  app.add_option("--init", config.init, "Hugging Face GPT-2 directory: architecture and weights");
  app.add_option("--model", config.model, "gpt2-124m, gpt2-350m, gpt2-774m or gpt2-1558m");
  app.add_option("--layers", config.layers, "layers L");
  app.add_option("--hidden", config.hidden, "width C, a multiple of 8");
  app.add_option("--heads", config.heads, "attention heads; C / heads is a multiple of 8");
  app.add_option("--vocab-size", config.vocab_size,
                 "vocabulary; default: the model's, or that of the data");
  app.add_option("--sequence-length", config.sequence_length, "tokens per sequence T");
}

void add_pipeline_flags(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--schedule", config.schedule, "gpipe, 1f1b, interleaved, ...")
      ->capture_default_str();
  app.add_option("--chunks", config.chunks, "chunks per rank v");
  app.add_option("--group", config.group, "interleaved: group N; default min(p, m)");
  app.add_option("--microbatches", config.microbatches, "micro-batches per step M")
      ->capture_default_str();
  app.add_option("--microbatch-size", config.microbatch_size, "sequences per micro-batch B")
      ->capture_default_str();
  app.add_option("--data-parallel", config.data_parallel,
                 "replicas of the pipeline D; M is per replica, p = ranks / D")
      ->capture_default_str();
  app.add_option("--zero", config.zero, "1: each replica keeps 1/D of the optimizer state")
      ->capture_default_str();
  app.add_option("--layers-per-stage", config.layers_per_stage, "layers of each stage: 3,4,4,3")
      ->delimiter(',');
  app.add_option("--precision", flags.precision, "fp32 or bf16")->capture_default_str();
  app.add_option("--memory-limit", config.memory_limit, "GiB per rank; default: the device's");
}

void add_optimizer_flags(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--steps", config.steps, "optimizer steps")->capture_default_str();
  app.add_option("--learning-rate", config.learning_rate, "peak")->capture_default_str();
  app.add_option("--lr-schedule", flags.lr_schedule, "constant, cosine or linear")
      ->capture_default_str();
  app.add_option("--warmup-steps", config.warmup_steps, "linear warm-up")->capture_default_str();
  app.add_option("--min-learning-rate", config.min_learning_rate, "end of cosine and linear")
      ->capture_default_str();
  app.add_option("--beta1", config.beta1, "AdamW")->capture_default_str();
  app.add_option("--beta2", config.beta2, "AdamW")->capture_default_str();
  app.add_option("--epsilon", config.epsilon, "AdamW")->capture_default_str();
  app.add_option("--weight-decay", config.weight_decay, "of matrices")->capture_default_str();
  app.add_option("--grad-clip", config.grad_clip, "largest gradient norm; 0: no clipping")
      ->capture_default_str();
  app.add_option("--seed", config.seed, "of weights and shuffling")->capture_default_str();
}

void add_data_and_output_flags(CLI::App& app, TrainFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--data", config.data, "token shards, or any files as bytes");
  app.add_option("--shuffle", flags.shuffle, "on or off")->capture_default_str();
  app.add_option("--run-dir", config.run_dir, "directory for metrics.jsonl and log.txt");
  app.add_option("--trace", config.trace, "Chrome trace (JSON) of the last step");
  app.add_option("--dump-gradients", config.dump_gradients,
                 "safetensors file: gradients of step 1, before clipping");
  app.add_option("--export", config.export_dir, "Hugging Face directory, written at the end");
  app.add_option("--timeout", config.timeout, "seconds an action may take before the job ends")
      ->capture_default_str();
}

// MPI waits for all ranks when it starts and when it ends.
void within_deadline(double seconds, const std::string& what, const std::function<void()>& work) {
  Watchdog watchdog(std::chrono::duration<double>(seconds), Watchdog::exit_process());
  const Watchdog::HostPhase phase(&watchdog, what);
  work();
}

int run_train(TrainFlags& flags) {
  flags.finish();
  install_signal_handlers();
  const double timeout = flags.config.timeout;
  std::unique_ptr<Control> control;
  within_deadline(timeout, fmt::format("rank {} waits for all ranks to start", launched_rank()),
                  [&] { control = make_mpi_control(); });
  const TrainReport report = train(flags.config, *control);
  if (control->rank() == 0) {
    fmt::print("{}", train_summary(flags.config, report, wants_colour(),
                                   std::thread::hardware_concurrency()));
  }
  within_deadline(timeout, fmt::format("rank {} waits for all ranks to end", control->rank()),
                  [&] { control.reset(); });
  return 0;
}

}  // namespace

Command add_train(CLI::App& main) {
  CLI::App* app =
      main.add_subcommand("train", "Trains a GPT, one pipeline stage or several chunks per rank");
  const auto flags = std::make_shared<TrainFlags>();
  add_model_flags(*app, flags->config);
  add_pipeline_flags(*app, *flags);
  add_optimizer_flags(*app, *flags);
  add_data_and_output_flags(*app, *flags);
  return {app, [flags] { return run_train(*flags); }};
}

}  // namespace pipetrain
