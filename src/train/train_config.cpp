#include "pipetrain/train/train_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "pipetrain/error.h"
#include "train/output_paths.h"

namespace pipetrain {
namespace {

// `!(value >= least)` is true for NaN too.
void require_at_least(double value, double least, const char* flag) {
  if (!(value >= least) || !std::isfinite(value)) {
    throw UsageError(
        fmt::format("{} {}: must be a finite number of at least {}", flag, value, least));
  }
}

void require_above_zero(double value, const char* flag) {
  if (!(value > 0) || !std::isfinite(value)) {
    throw UsageError(fmt::format("{} {}: must be a finite number above 0", flag, value));
  }
}

// The optimizer computes in float unless --precision is fp64.
void require_float(double value, const char* flag) {
  constexpr double least = std::numeric_limits<float>::min();
  constexpr double most = std::numeric_limits<float>::max();
  if (value != 0 && (value < least || value > most)) {
    throw UsageError(fmt::format("{} {}: must be {:.3g} to {:.3g}, which float holds", flag, value,
                                 least, most));
  }
}

void require_count(int64_t value, int64_t least, const char* flag) {
  if (value < least) {
    throw UsageError(fmt::format("{} {}: must be at least {}", flag, value, least));
  }
}

void require_count(const std::optional<int>& value, const char* flag) {
  if (value) {
    require_count(*value, 1, flag);
  }
}

void require_fraction(double value, const char* flag) {
  if (!(value >= 0 && value < 1)) {
    throw UsageError(fmt::format("{} {}: must be at least 0 and below 1", flag, value));
  }
}

// At most one way to say what the model is.
void check_model_flags(const TrainConfig& config) {
  const bool init = !config.init.empty();
  if (init && !config.model.empty()) {
    throw UsageError(
        fmt::format("--init {} and --model {}: give one of them", config.init, config.model));
  }
  const auto exclude = [&](const std::optional<int>& value, const char* flag, bool given,
                           const std::string& by) {
    if (value && given) {
      throw UsageError(
          fmt::format("{} {}: {} decides it; leave one of them out", flag, *value, by));
    }
  };
  const bool named = init || !config.model.empty();
  const std::string by = init ? "--init " + config.init : "--model " + config.model;
  exclude(config.layers, "--layers", named, by);
  exclude(config.hidden, "--hidden", named, by);
  exclude(config.heads, "--heads", named, by);
  exclude(config.vocab_size, "--vocab-size", init, by);
  const auto need = [&](const std::optional<int>& value, const char* flag) {
    if (!value && !named) {
      throw UsageError(fmt::format(
          "{} is missing: the model is given by --init, by --model, or by --layers, --hidden, "
          "--heads and --sequence-length",
          flag));
    }
    require_count(value, flag);
  };
  need(config.layers, "--layers");
  need(config.hidden, "--hidden");
  need(config.heads, "--heads");
  need(config.sequence_length, "--sequence-length");
  require_count(config.vocab_size, "--vocab-size");
}

}  // namespace

void TrainConfig::check() const {
  check_model_flags(*this);

  require_count(chunks, "--chunks");
  require_count(group, "--group");
  require_count(microbatches, 1, "--microbatches");
  require_count(microbatch_size, 1, "--microbatch-size");
  require_count(data_parallel, 1, "--data-parallel");
  if (zero != 0 && zero != 1) {
    throw UsageError(fmt::format("--zero {}: must be 0 or 1", zero));
  }
  if (balance != "layers" && balance != "measured") {
    throw UsageError(fmt::format("--balance {}: must be layers or measured", balance));
  }
  if (balance == "measured" && !layers_per_stage.empty()) {
    throw UsageError(fmt::format(
        "--balance measured: --layers-per-stage {} decides the partition; leave one of them out",
        fmt::join(layers_per_stage, ",")));
  }
  if (schedule == "auto" && group) {
    throw UsageError(
        fmt::format("--group {}: --schedule auto has no groups, leave it out", *group));
  }
  if (memory_limit) {
    require_above_zero(*memory_limit, "--memory-limit");
  }

  require_count(steps, 1, "--steps");
  require_at_least(learning_rate, 0, "--learning-rate");
  require_at_least(min_learning_rate, 0, "--min-learning-rate");
  if (min_learning_rate > learning_rate) {
    throw UsageError(fmt::format("--min-learning-rate {}: must be at most --learning-rate {}",
                                 min_learning_rate, learning_rate));
  }
  require_count(warmup_steps, 0, "--warmup-steps");
  require_fraction(beta1, "--beta1");
  require_fraction(beta2, "--beta2");
  require_above_zero(epsilon, "--epsilon");
  require_at_least(weight_decay, 0, "--weight-decay");
  require_at_least(grad_clip.value_or(0), 0, "--grad-clip");
  if (precision != Precision::fp64) {
    require_float(learning_rate, "--learning-rate");
    require_float(min_learning_rate, "--min-learning-rate");
    require_float(epsilon, "--epsilon");
    require_float(weight_decay, "--weight-decay");
    require_float(grad_clip.value_or(0), "--grad-clip");
  }

  if (data.empty()) {
    throw UsageError("--data is missing: at least one file is needed");
  }
  for (const auto& [value, flag] : {std::pair(validation_every, "--validation-every"),
                                    std::pair(validation_batches, "--validation-batches")}) {
    if (value) {
      require_count(*value, 1, flag);
    }
  }
  require_above_zero(timeout, "--timeout");
  check_output_paths(*this);
}

std::optional<std::string> TrainConfig::csv_file() const {
  constexpr std::string_view prefix = "csv:";
  return schedule.starts_with(prefix) ? std::optional(schedule.substr(prefix.size()))
                                      : std::nullopt;
}

ModelChoice choose_model(const TrainConfig& config, int natural_vocabulary,
                         const std::string& init_flag) {
  ModelChoice choice;
  GptConfig& model = choice.config;
  if (!config.init.empty()) {
    choice.source = read_huggingface_config(config.init, init_flag);
    model = choice.source->config;
  } else if (!config.model.empty()) {
    model = named_model(config.model);
    model.vocabulary = config.vocab_size.value_or(model.vocabulary);
  } else {
    model.layers = config.layers.value();
    model.hidden = config.hidden.value();
    model.heads = config.heads.value();
    model.sequence = config.sequence_length.value();
    model.vocabulary = config.vocab_size.value_or(natural_vocabulary);
  }
  choice.sequence = config.sequence_length.value_or(model.sequence);
  if (choice.sequence > model.sequence) {
    throw UsageError(fmt::format("--sequence-length {}: must be at most {}, the positions of {}",
                                 choice.sequence, model.sequence,
                                 config.init.empty() ? config.model : config.init));
  }
  model.check();
  // A kernel's grid covers the rows of a micro-batch and the elements of a row; both are ints.
  constexpr int64_t largest = std::numeric_limits<int>::max();
  if (int64_t(config.microbatch_size) * choice.sequence > largest) {
    throw UsageError(
        fmt::format("--microbatch-size {}: times --sequence-length {} must be at most {}",
                    config.microbatch_size, choice.sequence, largest));
  }
  return choice;
}

}  // namespace pipetrain
