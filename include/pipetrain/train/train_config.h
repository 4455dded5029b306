#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipetrain/model/config.h"
#include "pipetrain/model/slot_policy.h"
#include "pipetrain/train/huggingface.h"
#include "pipetrain/train/learning_rate.h"

namespace pipetrain {

// What a training run is asked for. Fields have the names of the flags of `pipetrain train`; an
// empty string or optional is a flag that was not given.
struct TrainConfig {
  // model: --init, or --model, or the sizes
  std::string init;   // a Hugging Face directory: architecture and weights
  std::string model;  // gpt2-124m, ...
  std::optional<int> layers;
  std::optional<int> hidden;
  std::optional<int> heads;
  std::optional<int> vocab_size;       // default: the model's; of bytes 256, of shards 50257
  std::optional<int> sequence_length;  // default: the model's; with --init or --model at most that

  // pipeline
  std::string schedule = "1f1b";
  std::optional<int> chunks;          // default: the schedule's own
  std::optional<int> group;           // default: the schedule's own
  int microbatches = 8;               // per step
  int microbatch_size = 1;            // sequences
  int data_parallel = 1;              // D replicas of every pipeline rank; p = ranks / D
  int zero = 0;                       // 1: each copy keeps its shard of the optimizer's state
  std::vector<int> layers_per_stage;  // empty: as --balance says
  std::string balance = "layers";     // as even as possible, or "measured": by profiled times
  Precision precision = Precision::fp32;
  SlotPolicy slots;                    // --recompute, --defer
  std::optional<double> memory_limit;  // GiB per rank; default: what the device has

  // optimizer
  int64_t steps = 100;
  double learning_rate = 3e-4;
  LrSchedule lr_schedule = LrSchedule::constant;
  int64_t warmup_steps = 0;
  double min_learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;        // of matrices
  std::optional<double> grad_clip;  // 0: no clipping; default: 1, with pipedream 0
  uint64_t seed = 1;

  // data
  std::vector<std::string> data;
  bool shuffle = true;
  std::vector<std::string> validation;
  std::optional<int64_t> validation_every;    // steps; always before the first and after the last
  std::optional<int64_t> validation_batches;  // at most so many micro-batches; default: all

  std::string config_file;  // --config, where all this may stand; read by who parses the flags

  // output; an empty name: not written
  std::string run_dir;
  std::string trace;
  std::string dump_gradients;
  std::string export_dir;  // --export
  double timeout = 300;    // seconds that an action may take before the job is given up

  // Throws UsageError that names the flag for values that are wrong whatever the files hold.
  void check() const;
  // FILE of --schedule csv:FILE; nothing for another schedule.
  std::optional<std::string> csv_file() const;
  // Planning takes times of the devices.
  bool needs_profile() const { return schedule == "auto" || balance == "measured"; }

  LearningRate rate() const {
    return {lr_schedule, learning_rate, min_learning_rate, warmup_steps, steps};
  }
};

// The model that a config asks for. Reads config.json of --init.
struct ModelChoice {
  GptConfig config;
  int sequence = 0;                         // T of training, at most config.sequence
  std::optional<HuggingFaceConfig> source;  // with --init
};

// natural_vocabulary: of the data, where neither --init, --model nor --vocab-size says. init_flag:
// what the user calls `init`. Throws UsageError naming the flag.
ModelChoice choose_model(const TrainConfig& config, int natural_vocabulary,
                         const std::string& init_flag = "--init");

}  // namespace pipetrain
