#include "pipetrain/train/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"

namespace pipetrain {

Job make_job(const TrainConfig& config, int ranks, int rank) {
  config.check();
  const Grid grid = make_grid(ranks, rank, 1);
  auto tokens = std::make_unique<TokenStream>(config.data);
  ModelChoice model = choose_model(config, tokens->natural_vocabulary());
  const BatchShape batch = {.microbatches = config.microbatches,
                            .replicas = grid.replicas,
                            .batch = config.microbatch_size,
                            .sequence = model.sequence};
  auto batches = std::make_unique<TokenBatches>(*tokens, batch, model.config.vocabulary,
                                                config.shuffle, config.seed);
  tokens->check_vocabulary(model.config.vocabulary);

  schedule::Schedule schedule = schedule::generate({.name = config.schedule,
                                                    .ranks = grid.pipeline,
                                                    .microbatches = config.microbatches,
                                                    .chunks = config.chunks.value_or(0),
                                                    .group = config.group.value_or(0)});
  std::vector<std::string> warnings = validate(schedule);
  schedule::LoweredSchedule lowered = lower(schedule);
  schedule::Simulation planned = simulate(schedule, {});

  const BudgetRequest request = {
      .model = model.config,
      .shape = {config.microbatch_size, model.sequence},
      .precision = config.precision,
      .stages =
          partition(model.config.layers, schedule.placement.stages(), config.layers_per_stage)};
  const Budget budget = rank_budget(request, lowered, grid.pipeline_rank());
  return {config,
          std::move(model),
          grid,
          batch,
          std::move(tokens),
          std::move(batches),
          std::move(schedule),
          std::move(lowered),
          std::move(planned),
          std::move(warnings),
          request,
          budget};
}

std::string Job::fingerprint() const {
  const GptConfig& gpt = model.config;
  std::string text = fmt::format(
      "layers {} hidden {} heads {} vocabulary {} sequence {} batch {} microbatches {} replicas {} "
      "precision {} steps {} learning-rate {} {} {} {} betas {} {} epsilon {} decay {} clip {} "
      "seed "
      "{} tokens {}\n",
      gpt.layers, gpt.hidden, gpt.heads, gpt.vocabulary, model.sequence, batch.batch,
      batch.microbatches, batch.replicas, to_string(config.precision), config.steps,
      config.learning_rate, to_string(config.lr_schedule), config.warmup_steps,
      config.min_learning_rate, config.beta1, config.beta2, config.epsilon, config.weight_decay,
      config.grad_clip, config.seed, tokens->size());
  for (const StageLayers& stage : request.stages) {
    text += fmt::format("{} ", stage.layers);
  }
  return text + "\n" + to_csv(lowered);
}

void require_fit(const Job& job, size_t free_bytes) {
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  if (job.config.memory_limit && double(job.budget.total()) > *job.config.memory_limit * gib) {
    throw DoesNotFit(fmt::format("--memory-limit {} GiB is too small: {}", *job.config.memory_limit,
                                 to_string(job.budget)));
  }
  if (job.budget.total() > free_bytes) {
    throw DoesNotFit(fmt::format(
        "the device has {} free, too little: {}. Fewer activations (--microbatch-size, --schedule "
        "1f1b) or more ranks need less",
        readable_bytes(free_bytes), to_string(job.budget)));
  }
}

}  // namespace pipetrain
