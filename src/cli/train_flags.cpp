#include "cli/train_flags.h"

#include <CLI/Option.hpp>

namespace pipetrain {

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

void add_slot_flags(CLI::App& app, SlotPolicy& slots) {
  app.add_option_function<std::string>(
         "--recompute",
         [&slots](const std::string& text) { slots.recompute = parse_recompute(text); },
         "what the backward computes again instead of keeping it: none, attention or full")
      ->default_str(to_string(slots.recompute));
  app.add_option_function<std::string>(
         "--defer", [&slots](const std::string& text) { slots.defer = parse_defer(text); },
         "weight gradients that I leaves to W: all, or cheap, those that need no further memory")
      ->default_str(to_string(slots.defer));
}

void add_placement_flags(CLI::App& app, TrainConfig& config, std::string& precision) {
  app.add_option(
         "--schedule", config.schedule,
         "gpipe, 1f1b, ..., pipedream, pipedream-2bw, csv:FILE, or auto: profiles the devices and "
         "searches the shortest step that fits the memory limit")
      ->capture_default_str();
  app.add_option("--chunks", config.chunks, "chunks per rank v");
  app.add_option("--microbatch-size", config.microbatch_size, "sequences per micro-batch B")
      ->capture_default_str();
  app.add_option("--data-parallel", config.data_parallel,
                 "replicas of the pipeline D; M is per replica, p = ranks / D")
      ->capture_default_str();
  app.add_option("--layers-per-stage", config.layers_per_stage, "layers of each stage: 3,4,4,3")
      ->delimiter(',');
  app.add_option("--precision", precision, "fp32 or bf16")->capture_default_str();
  app.add_option("--memory-limit", config.memory_limit,
                 "GiB per rank; default: what the device has free");
}

void add_pipeline_flags(CLI::App& app, TrainConfig& config, std::string& precision) {
  add_placement_flags(app, config, precision);
  app.add_option("--balance", config.balance,
                 "layers: as many to each stage as to the others; measured: by profiled times, "
                 "embedding and head counted, within the memory limit")
      ->capture_default_str();
  add_slot_flags(app, config.slots);
  app.add_option("--group", config.group, "interleaved: group N; default min(p, m)");
  app.add_option("--microbatches", config.microbatches, "micro-batches per step M")
      ->capture_default_str();
  app.add_option("--zero", config.zero, "1: each replica keeps 1/D of the optimizer state")
      ->capture_default_str();
}

}  // namespace pipetrain
