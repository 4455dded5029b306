#include "pipetrain/train/job.h"

#include <fmt/format.h>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"

namespace pipetrain {
namespace {

[[noreturn]] void refuse_schedule(const TrainConfig& config, const std::string& problem) {
  throw UsageError(fmt::format("--schedule {}: {}", config.schedule, problem));
}

// Ranks are those of the job; the file must have them.
schedule::Schedule read_csv_schedule(const TrainConfig& config, const Grid& grid) {
  schedule::Schedule schedule = schedule::read_csv(config.csv_file().value());
  const schedule::Placement& placement = schedule.placement;
  if (placement.ranks() != grid.pipeline) {
    refuse_schedule(config,
                    fmt::format("the file has {} lines, one per pipeline rank, and {} ranks with "
                                "--data-parallel {} are {}; start {} ranks",
                                placement.ranks(), grid.pipeline * grid.replicas, grid.replicas,
                                grid.pipeline, placement.ranks() * grid.replicas));
  }
  if (config.chunks && *config.chunks != placement.chunks()) {
    refuse_schedule(config,
                    fmt::format("the file has {} chunks per rank, --chunks is {}; leave it out",
                                placement.chunks(), *config.chunks));
  }
  return schedule;
}

// Micro-batches are those of the job too.
schedule::Schedule csv_schedule(const TrainConfig& config, const Grid& grid) {
  schedule::Schedule schedule = read_csv_schedule(config, grid);
  const int microbatches = schedule.placement.microbatches();
  const auto refuse = [&](const std::string& problem) { refuse_schedule(config, problem); };
  if (schedule.forward_only) {
    refuse("the file has no backward passes; training needs them");
  }
  if (microbatches != config.microbatches) {
    refuse(fmt::format("the file has {} micro-batches, --microbatches is {}; it must be {}",
                       microbatches, config.microbatches, microbatches));
  }
  if (config.group) {
    refuse(fmt::format("--group {}: the file decides; leave it out", *config.group));
  }
  if (schedule.update != schedule::Update::step) {
    refuse(
        "the file has an OPTIMIZER_STEP behind every weight gradient; train updates the weights so "
        "with --schedule pipedream alone. Leave the steps out of the file, or choose pipedream");
  }
  schedule.name = config.schedule;
  return schedule;
}

// The generators know the number of pipeline ranks as plan's flag.
schedule::Schedule generated_schedule(const TrainConfig& config, const Grid& grid) {
  try {
    return schedule::generate({.name = config.schedule,
                               .ranks = grid.pipeline,
                               .microbatches = config.microbatches,
                               .chunks = config.chunks.value_or(0),
                               .group = config.group.value_or(0)});
  } catch (const UsageError& error) {
    const std::string problem = error.what();
    if (problem.find("--ranks") == std::string::npos) {
      throw;
    }
    const bool named = problem.starts_with("--schedule ");
    throw UsageError(
        fmt::format("{}{} (--ranks: the {} ranks that mpirun -n starts over --data-parallel {})",
                    named ? "" : fmt::format("--schedule {}: ", config.schedule), problem,
                    grid.pipeline * grid.replicas, grid.replicas));
  }
}

// The files of --validation, checked; null: there are none.
std::unique_ptr<TokenStream> read_validation(const TrainConfig& config, const Grid& grid,
                                             const BatchShape& batch, const TokenStream& data,
                                             int vocabulary) {
  if (config.validation.empty()) {
    for (const auto& [value, flag] :
         {std::pair(config.validation_every, "--validation-every"),
          std::pair(config.validation_batches, "--validation-batches")}) {
      if (value) {
        throw UsageError(fmt::format("{} {}: needs --validation FILE", flag, *value));
      }
    }
    return nullptr;
  }
  auto tokens = std::make_unique<TokenStream>(config.validation, "--validation");
  if (tokens->shards() != data.shards()) {
    const auto kind = [](const TokenStream& stream) {
      return stream.shards() ? "the files are token shards" : "the files are read as bytes";
    };
    throw UsageError(fmt::format("--validation {}: {}, but of --data {}; both must be of one kind",
                                 config.validation.front(), kind(*tokens), kind(data)));
  }
  require_window(*tokens, batch, "--validation");
  tokens->check_vocabulary(vocabulary, grid.rank, grid.ranks());
  return tokens;
}

std::vector<std::string> notes_of(const schedule::Schedule& schedule) {
  std::vector<std::string> notes;
  if (schedule.update == schedule::Update::every_backward) {
    notes.push_back(fmt::format(
        "{}: every stage is updated after each of its micro-batches and keeps the weights that "
        "those in flight began with; embedding and head are separate parameters, nothing is "
        "clipped; losses are of the weights that each micro-batch was computed with",
        schedule.name));
  } else if (schedule.update == schedule::Update::delayed) {
    notes.push_back(fmt::format(
        "{}: losses and gradients of a step are of the weights before the current ones, and change "
        "the current ones",
        schedule.name));
  }
  return notes;
}

}  // namespace

schedule::Schedule make_schedule(const TrainConfig& config, const Grid& grid) {
  return config.csv_file() ? csv_schedule(config, grid) : generated_schedule(config, grid);
}

void adopt_updates(JobInputs* inputs, const schedule::Schedule& schedule) {
  TrainConfig* config = &inputs->config;
  const schedule::Update update = schedule.update;
  if (update == schedule::Update::every_backward) {
    if (config->grad_clip.value_or(0) != 0) {
      throw UsageError(fmt::format(
          "--grad-clip {}: --schedule {} updates every stage by itself, so there is no norm of the "
          "whole gradient to clip by; it must be 0, or left out",
          *config->grad_clip, config->schedule));
    }
    if (!config->dump_gradients.empty()) {
      throw UsageError(fmt::format(
          "--dump-gradients {}: a step of --schedule {} has as many gradients as micro-batches, "
          "each used for an update of its own; leave it out, or choose another schedule",
          config->dump_gradients, config->schedule));
    }
    config->grad_clip = 0;
  }
  config->grad_clip = config->grad_clip.value_or(1);
  inputs->model.config = trained_model(inputs->model.config, update);
  inputs->request.model = inputs->model.config;
  inputs->request.update = update;
}

schedule::Placement placement_of(const TrainConfig& config, const Grid& grid) {
  if (config.csv_file()) {
    return read_csv_schedule(config, grid).placement;
  }
  TrainConfig accepted = config;
  accepted.microbatches = 2 * grid.pipeline;  // every schedule takes as many
  return generated_schedule(accepted, grid).placement;
}

JobInputs read_inputs(const TrainConfig& config, int ranks, int rank) {
  config.check();
  const Grid grid = make_grid(ranks, rank, config.data_parallel);
  auto tokens = std::make_unique<TokenStream>(config.data);
  ModelChoice model = choose_model(config, tokens->natural_vocabulary());
  const MicrobatchShape shape = {config.microbatch_size, model.sequence};
  shape.check(model.config);
  std::string content = fmt::format("--data {}\n", tokens->content());
  if (model.source) {
    // Throws unless they are whole and fit.
    const HuggingFaceWeights weights(config.init, model.source->config);
    content += fmt::format("--init weights of checksum {:016x}, config.json {}\n",
                           weights.checksum(), model.source->json);
  }
  const BatchShape batch = {.microbatches = config.microbatches,
                            .replicas = grid.replicas,
                            .batch = config.microbatch_size,
                            .sequence = model.sequence};
  auto batches = std::make_unique<TokenBatches>(*tokens, batch, model.config.vocabulary,
                                                config.shuffle, config.seed);
  tokens->check_vocabulary(model.config.vocabulary, grid.rank, grid.ranks());
  const BudgetRequest request = {.model = model.config,
                                 .shape = shape,
                                 .precision = config.precision,
                                 .stages = {},
                                 .replicas = grid.replicas,
                                 .split_state = config.zero == 1,
                                 .slots = config.slots};
  std::unique_ptr<TokenStream> validation =
      read_validation(config, grid, batch, *tokens, model.config.vocabulary);
  if (validation) {
    content += fmt::format("--validation {}\n", validation->content());
  }
  return {config,
          std::move(model),
          grid,
          batch,
          std::move(tokens),
          std::move(batches),
          std::move(validation),
          request,
          std::move(content)};
}

Job make_job(JobInputs inputs, schedule::Schedule schedule, std::vector<StageLayers> stages,
             const std::optional<schedule::Costs>& costs) {
  adopt_updates(&inputs, schedule);
  std::vector<std::string> warnings = validate(schedule);
  schedule::LoweredSchedule lowered = lower(schedule);
  schedule::Simulation planned = costs ? simulate(lowered, *costs) : simulate(schedule, {});
  inputs.request.stages = std::move(stages);
  assign_gradient_slots(&lowered, keeps_gradients(inputs.request));
  std::optional<Evaluation> evaluation;
  if (inputs.validation) {
    evaluation = make_evaluation(std::move(inputs.validation), inputs.batch,
                                 inputs.config.validation_batches, inputs.model.config.vocabulary,
                                 lowered.placement);
    evaluation->lowered = on_channels_of(lowered, std::move(evaluation->lowered));
  }
  std::vector<std::string> notes = notes_of(schedule);
  const Budget budget = rank_budget(inputs.request, lowered, inputs.grid.pipeline_rank(),
                                    evaluation ? &*evaluation : nullptr);
  return {std::move(inputs),
          std::move(schedule),
          std::move(lowered),
          std::move(planned),
          costs,
          std::move(warnings),
          std::move(notes),
          std::move(evaluation),
          budget};
}

Job make_job(const TrainConfig& config, int ranks, int rank) {
  JobInputs inputs = read_inputs(config, ranks, rank);
  if (config.needs_profile()) {
    throw UsageError(fmt::format("--schedule {} --balance {}: needs a profile of the devices",
                                 config.schedule, config.balance));
  }
  schedule::Schedule schedule = make_schedule(config, inputs.grid);
  std::vector<StageLayers> stages =
      partition(inputs.model.config.layers, schedule.placement.stages(), config.layers_per_stage);
  return make_job(std::move(inputs), std::move(schedule), std::move(stages));
}

std::string Job::fingerprint() const {
  const GptConfig& gpt = model.config;
  std::string text =
      content +
      fmt::format("--layers {} --hidden {} --heads {} --vocab-size {} --sequence-length {}\n",
                  gpt.layers, gpt.hidden, gpt.heads, gpt.vocabulary, model.sequence);
  for (const StageLayers& stage : request.stages) {
    text += fmt::format("{} ", stage.layers);
  }
  text += "\n" + to_csv(lowered);
  if (evaluation) {
    text += fmt::format("--validation: {} tokens are read\n", evaluation->valid_targets()) +
            to_csv(evaluation->lowered);
  }
  return text;
}

void require_fit(const Budget& budget, const std::optional<double>& memory_limit,
                 size_t free_bytes) {
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  if (memory_limit && double(budget.total()) > *memory_limit * gib) {
    throw DoesNotFit(
        fmt::format("--memory-limit {} GiB is too small: {}", *memory_limit, to_string(budget)));
  }
  if (budget.total() > free_bytes) {
    throw DoesNotFit(
        fmt::format("the device has {} free for this rank, too little: {}. Fewer activations "
                    "(--microbatch-size, --schedule "
                    "1f1b, --recompute full) or more ranks need less",
                    readable_bytes(free_bytes), to_string(budget)));
  }
}

}  // namespace pipetrain
