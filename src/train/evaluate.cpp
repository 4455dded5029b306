#include "pipetrain/train/evaluate.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "pipetrain/comm/agree.h"
#include "pipetrain/device/info.h"
#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/train/evaluator.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/log.h"
#include "pipetrain/train/start.h"
#include "pipetrain/train/weights.h"

namespace pipetrain {
namespace {

// What is known before anything is allocated.
struct Plan {
  ModelChoice model;
  Grid grid;
  Evaluation evaluation;
  BudgetRequest request;
  Budget budget;        // of this rank
  std::string content;  // checksums of the files

  std::string fingerprint() const;
};

Plan make_plan(const TrainConfig& config, int ranks, int rank, const std::string& flag) {
  config.check();
  if (config.schedule == "auto") {
    throw UsageError(
        "--schedule auto: there is nothing to search forward only; name a schedule, whose "
        "placement "
        "is used, or csv:FILE");
  }
  const Grid grid = make_grid(ranks, rank, config.data_parallel);
  auto tokens = std::make_unique<TokenStream>(config.data);
  ModelChoice model = choose_model(config, tokens->natural_vocabulary(), flag);
  const MicrobatchShape shape = {config.microbatch_size, model.sequence};
  shape.check(model.config);
  // Throws unless they are whole and fit.
  const HuggingFaceWeights weights(config.init, model.config, flag);
  std::string content =
      fmt::format("--data {}\n{} weights of checksum {:016x}, config.json {}\n", tokens->content(),
                  flag, weights.checksum(), model.source->json);
  const BatchShape most = {.microbatches = config.microbatches,
                           .replicas = grid.replicas,
                           .batch = config.microbatch_size,
                           .sequence = model.sequence};
  require_window(*tokens, most, "--data");
  tokens->check_vocabulary(model.config.vocabulary, grid.rank, grid.ranks());
  Evaluation evaluation = make_evaluation(std::move(tokens), most, config.validation_batches,
                                          model.config.vocabulary, placement_of(config, grid));
  const BudgetRequest request = {
      .model = model.config,
      .shape = shape,
      .precision = config.precision,
      .stages = partition(model.config.layers, evaluation.lowered.placement.stages(),
                          config.layers_per_stage),
      .replicas = grid.replicas,
      .split_state = false,
      .slots = {.recompute = Recompute::full}};  // the smallest slot; nothing is computed again
  const Budget budget = evaluation_budget(request, evaluation, grid.pipeline_rank());
  return {std::move(model), grid, std::move(evaluation), request, budget, std::move(content)};
}

std::string Plan::fingerprint() const {
  const GptConfig& gpt = request.model;
  std::string text =
      content + fmt::format("--layers {} --hidden {} --heads {} --vocab-size {} {}\n", gpt.layers,
                            gpt.hidden, gpt.heads, gpt.vocabulary,
                            pipetrain::to_string(evaluation));
  for (const StageLayers& stage : request.stages) {
    text += fmt::format("{} ", stage.layers);
  }
  return text + "\n" + to_csv(evaluation.lowered);
}

// One rank's device memory, channels and stages without training.
class ForwardEngine {
 public:
  ForwardEngine(const Plan& plan, Control& control, Watchdog* watchdog);
  ~ForwardEngine() { watchdog_->clear(); }

  const ParameterStore& parameters() const { return *store_; }
  Evaluator& evaluator() { return *evaluator_; }

 private:
  Watchdog* watchdog_;
  Buffer memory_;
  Stream compute_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<GptWorkspace, void (*)(GptWorkspace*)> workspace_{nullptr, nullptr};
  std::unique_ptr<Pool> activations_;
  std::unique_ptr<Pool> gradient_slots_;
  std::unique_ptr<Evaluator> evaluator_;
};

ForwardEngine::ForwardEngine(const Plan& plan, Control& control, Watchdog* watchdog)
    : watchdog_(watchdog), memory_(plan.budget.allocated()) {
  const BudgetRequest& request = plan.request;
  const schedule::LoweredSchedule& lowered = plan.evaluation.lowered;
  const int rank = plan.grid.pipeline_rank();
  const std::vector<StageLayers> held = held_stages(request, lowered.placement, rank);
  Region region(memory_);
  store_ = std::make_unique<ParameterStore>(request.model, held, request.precision, region);
  control.barrier();  // nobody waits inside NCCL for one that still allocates
  exchange_ = std::make_unique<Exchange>(
      lowered, plan.grid, control, message_bytes(request.model, request.shape, request.precision),
      region,
      transfers_need_one_stream() ? std::make_shared<Stream>(StreamPriority::high) : nullptr,
      watchdog);
  workspace_ = make_gpt_workspace(request.model, request.shape, request.precision, held,
                                  request.slots, region, WorkspaceUse::forward);
  activations_ =
      std::make_unique<Pool>("activation slots", lowered.activation_slots[size_t(rank)],
                             activation_slot_bytes(request, lowered.placement, rank), region);
  gradient_slots_ = std::make_unique<Pool>("gradient slots", 0, 0, region);
  evaluator_ = std::make_unique<Evaluator>(plan.evaluation, request, plan.grid,
                                           Evaluator::Parts{.store = *store_,
                                                            .workspace = *workspace_,
                                                            .activations = *activations_,
                                                            .gradient_slots = *gradient_slots_,
                                                            .exchange = *exchange_,
                                                            .compute = compute_,
                                                            .watchdog = watchdog},
                                           region);
  watchdog->set_error_probe([this] {
    const ncclResult_t result = exchange_->async_error();
    return result == ncclSuccess ? std::string()
                                 : fmt::format("NCCL: {}", ncclGetErrorString(result));
  });
}

void announce(const Plan& plan, const TrainConfig& config, Control& control, Log& log) {
  const GptConfig& gpt = plan.request.model;
  const Evaluation& evaluation = plan.evaluation;
  log.info(
      fmt::format("GPT of {} layers, width {}, {} heads, vocabulary {}, {}; {} of {} tokens, {}",
                  gpt.layers, gpt.hidden, gpt.heads, gpt.vocabulary, to_string(config.precision),
                  evaluation.valid_targets(), evaluation.tokens->size(), to_string(evaluation)));
  log.info(fmt::format("forward only on {} ranks, {} stages, replicas: {}; device: {}",
                       plan.grid.pipeline, evaluation.lowered.placement.stages(),
                       plan.grid.replicas,
                       device_info(control.local_rank() % device_count()).name));
  for (const std::string& note : plan.model.source->notes) {
    log.info(note);
  }
  log_budgets(plan.budget, control, log);
}

}  // namespace

EvaluationReport evaluate(const TrainConfig& config, Control& control,
                          const std::string& checkpoint_flag) {
  const double timeout = config.timeout > 0 ? config.timeout : TrainConfig().timeout;
  Watchdog watchdog(std::chrono::duration<double>(timeout),
                    expire_on(control.rank(), config.data_parallel));
  const SharedProgress progress(watchdog, control);
  const auto phase = [&](const std::string& what) {
    return Watchdog::HostPhase(&watchdog, fmt::format("rank {} {}", control.rank(), what));
  };
  std::optional<Plan> plan;
  Log log("", control.rank() == 0 ? Log::Terminal::on : Log::Terminal::off);
  {
    const auto reading = phase("reads its input and waits for the others");
    control.require_equal(common_flags(config), "the flags");
    agree(control, [&] {
      plan.emplace(make_plan(config, control.size(), control.rank(), checkpoint_flag));
    });
    const size_t free_bytes = select_own_device(control);
    agree(control, [&] { require_fit(plan->budget, config.memory_limit, free_bytes); });
    control.require_equal(plan->fingerprint(), "the job (its files, model or placement)");
    announce(*plan, config, control, log);
  }
  std::optional<ForwardEngine> engine;
  {
    const auto connecting = phase("connects its channels");
    engine.emplace(*plan, control, &watchdog);
  }
  {
    const auto setting = phase("sets its weights and waits for the others");
    agree(control, [&] {
      const HuggingFaceWeights source(config.init, plan->request.model, checkpoint_flag);
      set_weights(engine->parameters(), config.precision,
                  [&source](const Parameter& parameter) { return source.values(parameter); });
    });
  }
  EvaluationResult result;
  try {
    result = engine->evaluator().run(control, log);
  } catch (const std::exception& error) {
    watchdog.fail(fmt::format("rank {} ends: {}", control.rank(), error.what()));
    throw;
  }
  const auto closing = phase("closes its channels");
  engine.reset();
  return {result, plan->evaluation.microbatches, plan->evaluation.tokens->size(), plan->budget,
          device_info(control.local_rank() % device_count()).emulated ? "host" : "cuda"};
}

}  // namespace pipetrain
