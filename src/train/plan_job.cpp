// A job whose plan may take a profile of the devices: rank 0 plans, all ranks run its plan.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <sstream>

#include "pipetrain/comm/agree.h"
#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/planner.h"
#include "pipetrain/train/start.h"

namespace pipetrain {
namespace {

// What this rank may take.
size_t allowed_memory(const TrainConfig& config, size_t free_bytes) {
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  return size_t(
      std::min(config.memory_limit.value_or(double(free_bytes)) * (config.memory_limit ? gib : 1),
               double(free_bytes)));
}

// Per pipeline rank, the least of its replicas; on rank 0.
std::vector<size_t> gather_memory(size_t own, const Grid& grid, Control& control) {
  std::vector<size_t> of_pipeline;
  const auto all = control.gather(std::as_bytes(std::span(&own, 1)), 0);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    size_t bytes = 0;
    std::memcpy(&bytes, all[rank].data(), sizeof(bytes));
    if (rank % size_t(grid.replicas) == 0) {
      of_pipeline.push_back(bytes);
    }
    of_pipeline.back() = std::min(of_pipeline.back(), bytes);
  }
  return of_pipeline;
}

// What --validation takes on each pipeline rank beside training, whatever the training schedule of
// one of these placements.
std::vector<size_t> validation_bytes(const JobInputs& inputs,
                                     const std::vector<schedule::Placement>& placements) {
  std::vector<size_t> most(size_t(inputs.grid.pipeline));
  for (const schedule::Placement& placement : placements) {
    Evaluation evaluation = make_evaluation(
        std::make_unique<TokenStream>(inputs.config.validation, "--validation"), inputs.batch,
        inputs.config.validation_batches, inputs.model.config.vocabulary, placement);
    const schedule::LoweredSchedule least = lower(schedule::generate_forward_only(placement, 1));
    evaluation.lowered = on_channels_of(least, std::move(evaluation.lowered));
    BudgetRequest request = inputs.request;
    request.stages = partition(inputs.model.config.layers, placement.stages());
    for (int rank = 0; rank < inputs.grid.pipeline; ++rank) {
      const size_t bytes = rank_budget(request, least, rank, &evaluation).total() -
                           rank_budget(request, least, rank).total();
      most[size_t(rank)] = std::max(most[size_t(rank)], bytes);
    }
  }
  return most;
}

// Layers per stage in one line; then the schedule, where it was searched. All ranks read it back,
// rank 0 too, so that all run the same.
std::string to_text(const std::vector<StageLayers>& stages, const schedule::Schedule* searched) {
  std::string text;
  for (const StageLayers& stage : stages) {
    text += fmt::format("{} ", stage.layers);
  }
  return text + "\n" + (searched != nullptr ? to_csv(*searched) : "");
}

// What rank 0 decides: to_text(), or why nothing fits.
struct Decision {
  std::string text;
  std::string problem;
  std::vector<std::string> notes;
};

Decision decide(const PlanRequest& request, const schedule::Schedule* schedule) {
  Decision decision;
  decision.notes = describe(request.profile);
  try {
    if (schedule != nullptr) {
      const std::vector<StageLayers> stages = plan_partition(request, lower(*schedule));
      decision.text = to_text(stages, nullptr);
      decision.notes.push_back(describe(stages, request.profile, schedule->placement));
    } else {
      const AutoPlan plan = plan_auto(request);
      decision.text = to_text(plan.stages, &plan.schedule);
      const std::vector<std::string> lines = describe(plan);
      decision.notes.insert(decision.notes.end(), lines.begin(), lines.end());
    }
  } catch (const DoesNotFit& error) {
    decision.problem = error.what();
  }
  return decision;
}

void require_room_for_profile(const BudgetRequest& request, size_t allowed) {
  if (const size_t bytes = profile_bytes(request); bytes > allowed) {
    throw DoesNotFit(fmt::format(
        "{} may be taken (--memory-limit, or what the device has free), too little for the profile "
        "of --schedule auto and --balance measured, which takes {}: parameters, gradients, "
        "optimizer state and one micro-batch of the largest of a block, the embedding and the head",
        readable_bytes(allowed), readable_bytes(bytes)));
  }
}

class Planning {
 public:
  Planning(const TrainConfig& config, Control& control, Watchdog* watchdog)
      : config_(config), control_(control), watchdog_(watchdog) {}

  Job plan() {
    prepare();
    std::optional<Job> job;
    if (config_.needs_profile()) {
      const Profile profile = measure_profile(inputs_->request, inputs_->grid,
                                              config_.chunks.value_or(1) > 1, control_, watchdog_);
      const Watchdog::HostPhase phase = host_phase("plans, or waits for rank 0's plan");
      job.emplace(planned(profile));
    } else {
      const Watchdog::HostPhase phase = host_phase("plans and waits for the others");
      agree(control_, [&] {
        std::vector<StageLayers> stages = partition(
            inputs_->model.config.layers, schedule_->placement.stages(), config_.layers_per_stage);
        job.emplace(make_job(std::move(*inputs_), std::move(*schedule_), std::move(stages)));
        require_fit(job->budget, config_.memory_limit, free_bytes_);
      });
    }
    const Watchdog::HostPhase phase = host_phase("compares its job with the others'");
    control_.require_equal(job->fingerprint(), "the job (its files, model or schedule)");
    return std::move(*job);
  }

 private:
  Watchdog::HostPhase host_phase(const std::string& what) {
    return {watchdog_, fmt::format("rank {} {}", control_.rank(), what)};
  }

  // Everything that can be wrong with the input, before anything is allocated.
  void prepare() {
    const Watchdog::HostPhase phase = host_phase("reads its input and waits for the others");
    control_.require_equal(common_flags(config_), "the flags");
    agree(control_, [&] {
      inputs_.emplace(read_inputs(config_, control_.size(), control_.rank()));
      if (config_.schedule == "auto") {
        auto_placements(inputs_->grid.pipeline, config_.microbatches, config_.chunks,
                        config_.layers_per_stage);
      } else {
        schedule_.emplace(make_schedule(config_, inputs_->grid));
        adopt_updates(&*inputs_, *schedule_);
      }
    });
    free_bytes_ = select_own_device(control_);
    agree(control_, [&] {
      if (config_.needs_profile()) {
        require_room_for_profile(inputs_->request, allowed_memory(config_, free_bytes_));
      }
    });
  }

  Job planned(const Profile& profile) {
    PlanRequest request = {
        .budget = inputs_->request,
        .ranks = inputs_->grid.pipeline,
        .microbatches = config_.microbatches,
        .chunks = config_.chunks,
        .layers_per_stage = config_.layers_per_stage,
        .balance = config_.balance == "measured",
        .profile = profile,
        .memory = gather_memory(allowed_memory(config_, free_bytes_), inputs_->grid, control_)};
    Decision decision;
    agree(control_, [&] {
      if (control_.rank() == 0) {
        leave_room_for_validation(request.memory);
        decision = decide(request, schedule_ ? &*schedule_ : nullptr);
      }
    });
    const std::string problem = control_.broadcast(decision.problem, 0);
    const std::string text = control_.broadcast(decision.text, 0);
    std::optional<Job> job;
    agree(control_, [&] {
      if (!problem.empty()) {
        throw DoesNotFit(problem);
      }
      job.emplace(from_text(text, profile));
      job->notes.insert(job->notes.begin(), decision.notes.begin(), decision.notes.end());
      require_fit(job->budget, config_.memory_limit, free_bytes_);
    });
    return std::move(*job);
  }

  void leave_room_for_validation(std::vector<size_t>& memory) const {
    if (!inputs_->validation) {
      return;
    }
    const std::vector<size_t> taken = validation_bytes(
        *inputs_, schedule_ ? std::vector{schedule_->placement}
                            : auto_placements(inputs_->grid.pipeline, config_.microbatches,
                                              config_.chunks, config_.layers_per_stage));
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      memory[rank] -= std::min(memory[rank], taken[rank]);
    }
  }

  Job from_text(const std::string& text, const Profile& profile) {
    const size_t line = text.find('\n');
    if (!schedule_) {
      schedule_.emplace(schedule::parse_csv(text.substr(line + 1), "--schedule auto"));
      schedule_->name = "auto";
    }
    std::vector<int> layers;
    std::istringstream counts(text.substr(0, line));
    for (int count = 0; counts >> count;) {
      layers.push_back(count);
    }
    inputs_->request.stages =
        partition(inputs_->model.config.layers, schedule_->placement.stages(), layers);
    const schedule::Costs costs = profiled_costs(profile, inputs_->request, schedule_->placement);
    std::vector<StageLayers> stages = inputs_->request.stages;
    return make_job(std::move(*inputs_), std::move(*schedule_), std::move(stages), costs);
  }

  const TrainConfig& config_;
  Control& control_;
  Watchdog* watchdog_;
  std::optional<JobInputs> inputs_;
  std::optional<schedule::Schedule> schedule_;  // not of auto, until it is planned
  size_t free_bytes_ = 0;
};

}  // namespace

Job plan_job(const TrainConfig& config, Control& control, Watchdog* watchdog) {
  return Planning(config, control, watchdog).plan();
}

}  // namespace pipetrain
