// What the flags of `pipetrain plan` may say.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "cli/plan.h"
#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/train/run_directory.h"

namespace pipetrain {
namespace {

constexpr const char* model_text =
    "--model, or all of --layers, --hidden, --heads and --sequence-length";
constexpr double largest_number = 1e15;  // sums of millions of times stay finite and exact enough

void check_number(double value, const char* flag) {
  if (!(value >= 0 && value <= largest_number)) {
    throw UsageError(fmt::format("{} {}: must be from 0 to {:g}", flag, value, largest_number));
  }
}

void check_times(const std::vector<double>& times, const char* flag, int ranks, bool optional) {
  if (times.empty() && optional) {
    return;
  }
  if (times.size() != 1 && times.size() != size_t(ranks)) {
    throw UsageError(fmt::format("{} has {} values; it needs one, or one per rank ({})", flag,
                                 times.size(), ranks));
  }
  for (const double time : times) {
    check_number(time, flag);
  }
}

bool is_any_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

bool PlanModel::given() const {
  return !model.empty() || layers || hidden || heads || vocab_size || sequence_length ||
         microbatch_size || !layers_per_stage.empty() || memory_limit;
}

bool PlanModel::complete() const {
  return !model.empty() || (layers && hidden && heads && sequence_length);
}

BudgetRequest PlanModel::request() const {
  GptConfig config;
  if (!model.empty()) {
    config = named_model(model);
    for (const auto& [flag, value] :
         {std::pair("--layers", layers), {"--hidden", hidden}, {"--heads", heads}}) {
      if (value) {
        throw UsageError(fmt::format("{} {}: --model {} decides it; leave one of them out", flag,
                                     *value, model));
      }
    }
    if (sequence_length && *sequence_length > config.sequence) {
      throw UsageError(fmt::format("--sequence-length {}: must be at most {}, the positions of {}",
                                   *sequence_length, config.sequence, model));
    }
  } else if (!complete()) {
    throw UsageError(std::string("the model is not whole; it needs ") + model_text);
  } else {
    config.layers = *layers;
    config.hidden = *hidden;
    config.heads = *heads;
    config.sequence = *sequence_length;
    config.vocabulary = 50257;
  }
  config.vocabulary = vocab_size.value_or(config.vocabulary);
  config.check();
  const int batch = microbatch_size.value_or(1);
  if (batch < 1) {
    throw UsageError(fmt::format("--microbatch-size {}: must be at least 1", batch));
  }
  const MicrobatchShape shape = {batch, sequence_length.value_or(config.sequence)};
  shape.check(config);
  return {.model = config,
          .shape = shape,
          .precision = parse_precision(precision),
          .stages = {},
          .slots = slots,
          .nccl = true};
}

bool PlanOptions::has(const std::string& flag) const {
  return is_any_of(flag, given);
}

void PlanOptions::check_use_of_flags() const {
  const auto exclude = [&](const std::vector<std::string>& flags, const std::string& reason) {
    for (const std::string& flag : flags) {
      if (has(flag)) {
        throw UsageError(fmt::format("{}: {}", flag, reason));
      }
    }
  };
  if (model.given()) {
    exclude({"--forward", "--backward-input", "--backward-weight", "--overlapped", "--bytes"},
            "the model flags predict it; leave it out, or the model flags");
  } else {
    exclude({"--device", "--link", "--precision", "--recompute", "--defer"},
            std::string("it says nothing without a model: ") + model_text);
  }
  if (!model.complete()) {
    exclude({"--memory-limit", "--layers-per-stage", "--microbatch-size", "--layers", "--hidden",
             "--heads", "--sequence-length", "--vocab-size"},
            std::string("the model is not whole; it needs ") + model_text);
  }
  const bool searches = schedule == "auto" || schedule == "all";
  if (!searches) {
    exclude({"--objective"},
            fmt::format("it is for --schedule auto or all; --schedule is {}", schedule));
  }
  if (schedule == "auto") {
    exclude({"--group"}, "it is for interleaved; --schedule auto finds its own order");
  }
}

void PlanOptions::check() const {
  const std::vector<std::string> names = schedule::schedule_names();
  if (!is_any_of(schedule, names) && !is_any_of(schedule, {"auto", "all"}) &&
      !schedule.starts_with("csv:")) {
    throw UsageError(fmt::format("--schedule is '{}'; it must be one of: {} auto all, or csv:FILE",
                                 schedule, fmt::join(names, " ")));
  }
  if (ranks < 1) {
    throw UsageError(fmt::format("--ranks {}: must be at least 1", ranks));
  }
  if (microbatches < 1) {
    throw UsageError(fmt::format("--microbatches {}: must be at least 1", microbatches));
  }
  for (const auto& [flag, value] : {std::pair("--chunks", chunks), std::pair("--group", group)}) {
    if (value < (has(flag) ? 1 : 0)) {
      throw UsageError(fmt::format("{} {}: must be at least 1", flag, value));
    }
  }
  if (has("--bandwidth") && !(bandwidth > 0)) {
    throw UsageError(fmt::format("--bandwidth {}: must be above 0", bandwidth));
  }
  check_use_of_flags();
  const std::string table = schedule.starts_with("csv:") ? schedule.substr(4) : "";
  for (const auto& [flag, input] : {std::pair("--schedule", table), {"--config", config_file}}) {
    if (!output.empty() && !input.empty() && same_file(output, input)) {
      throw UsageError(
          fmt::format("--output {}: would overwrite what {} reads; choose another", output, flag));
    }
  }
  check_times(costs.forward, "--forward", ranks, false);
  check_times(costs.backward_input, "--backward-input", ranks, false);
  check_times(costs.backward_weight, "--backward-weight", ranks, false);
  check_times(costs.overlapped, "--overlapped", ranks, true);
  const auto all_zero = [](const std::vector<double>& times) {
    return std::all_of(times.begin(), times.end(), [](double time) { return time == 0; });
  };
  if (all_zero(costs.forward) && all_zero(costs.backward_input) &&
      all_zero(costs.backward_weight)) {
    throw UsageError("--forward, --backward-input, --backward-weight: not all may be 0");
  }
  check_times(activation_limit, "--activation-limit", ranks, true);
  check_number(costs.latency, "--latency");
  check_number(costs.weight_memory, "--weight-memory");
  check_number(bytes, "--bytes");
  check_number(bandwidth, "--bandwidth");
  if (model.given()) {
    model.request();
    device_model(model.device);
    link_model(model.link);
    if (model.memory_limit && !(*model.memory_limit > 0)) {
      throw UsageError(fmt::format("--memory-limit {}: must be above 0", *model.memory_limit));
    }
  } else if ((bytes > 0) != (bandwidth > 0)) {
    throw UsageError("--bytes and --bandwidth go together, both above 0");
  }
  if (!is_any_of(objective, {"makespan", "span"})) {
    throw UsageError(fmt::format("--objective {}: must be makespan or span", objective));
  }
  const std::vector<std::string> one = {"csv", "svg", "trace"};
  if (!is_any_of(format, one) && !is_any_of(format, {"table", "json", "ascii"})) {
    throw UsageError(
        fmt::format("--format {}: must be table, json, csv, ascii, svg or trace", format));
  }
  if (schedule == "all" && is_any_of(format, one)) {
    throw UsageError(fmt::format(
        "--format {} shows one schedule; --schedule all needs table, json or ascii", format));
  }
}

void PlanOptions::adopt_file() {
  if (!schedule.starts_with("csv:")) {
    return;
  }
  const schedule::Placement placement = requested_schedule(schedule, *this).placement;
  if ((has("--ranks") && ranks != placement.ranks()) ||
      (has("--microbatches") && microbatches != placement.microbatches())) {
    throw UsageError(fmt::format(
        "--schedule {} is for {} ranks and {} micro-batches; --ranks and --microbatches say {} and "
        "{}: leave them out",
        schedule, placement.ranks(), placement.microbatches(), ranks, microbatches));
  }
  if (chunks != 0 || group != 0) {
    throw UsageError(fmt::format("--schedule {}: leave out --chunks and --group", schedule));
  }
  ranks = placement.ranks();
  microbatches = placement.microbatches();
}

}  // namespace pipetrain
