#include "pipetrain/train/start.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <string_view>

#include "pipetrain/comm/agree.h"
#include "pipetrain/comm/environment.h"
#include "pipetrain/device/check.h"
#include "pipetrain/device/info.h"
#include "pipetrain/error.h"
#include "pipetrain/model/flops.h"

#ifdef PIPETRAIN_HOST
#include <emulator.h>
#endif

namespace pipetrain {

Watchdog::Expire expire_on(int rank, int replicas) {
  if (replicas <= 1) {
    return Watchdog::exit_process();
  }
  return [rank, replicas, exit = Watchdog::exit_process()](const std::string& reason,
                                                           ExitCode code) {
    exit(fmt::format("replica {} (rank {} of the job): {}", rank % replicas, rank, reason), code);
  };
}

namespace {

// What ranks that take from the same memory have in common.
std::string memory_identity() {
#ifdef PIPETRAIN_HOST
  if (emulator::settings().memory_bytes == 0) {
    return host_identity();
  }
#endif
  return host_identity() + " " + device_info(current_device()).bus_id;
}

}  // namespace

std::string common_flags(const TrainConfig& config) {
  std::string text;
  const auto add = [&](const char* flag, const auto& value) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", flag, value);
  };
  const auto add_optional = [&](const char* flag, const auto& value) {
    value ? add(flag, *value) : add(flag, "not given");
  };
  const auto add_path = [&](const char* flag, const auto& path) {
    add(flag, path.empty() ? "not given" : "given");
  };
  add_path("--init", config.init);
  add("--model", config.model.empty() ? "not given" : config.model);
  add_optional("--layers", config.layers);
  add_optional("--hidden", config.hidden);
  add_optional("--heads", config.heads);
  add_optional("--vocab-size", config.vocab_size);
  add_optional("--sequence-length", config.sequence_length);
  add("--schedule", config.schedule.starts_with("csv:") ? "csv:FILE" : config.schedule);
  add_optional("--chunks", config.chunks);
  add_optional("--group", config.group);
  add("--microbatches", config.microbatches);
  add("--microbatch-size", config.microbatch_size);
  add("--data-parallel", config.data_parallel);
  add("--zero", config.zero);
  add("--layers-per-stage", fmt::format("{}", fmt::join(config.layers_per_stage, ",")));
  add("--balance", config.balance);
  add("--precision", to_string(config.precision));
  add("--recompute", to_string(config.slots.recompute));
  add("--defer", to_string(config.slots.defer));
  add("--steps", config.steps);
  add("--learning-rate", config.learning_rate);
  add("--lr-schedule", to_string(config.lr_schedule));
  add("--warmup-steps", config.warmup_steps);
  add("--min-learning-rate", config.min_learning_rate);
  add("--beta1", config.beta1);
  add("--beta2", config.beta2);
  add("--epsilon", config.epsilon);
  add("--weight-decay", config.weight_decay);
  add_optional("--grad-clip", config.grad_clip);
  add("--seed", config.seed);
  add("--shuffle", config.shuffle ? "on" : "off");
  add_path("--validation", config.validation);
  add_optional("--validation-every", config.validation_every);
  add_optional("--validation-batches", config.validation_batches);
  add_path("--dump-gradients", config.dump_gradients);
  add_path("--export", config.export_dir);
  return text;
}

size_t select_own_device(Control& control) {
  agree(control, [&] {
    const int devices = device_count();
    if (devices == 0) {
      throw UsageError(fmt::format("no GPU: {}; the host flavour needs none", device_problem()));
    }
    select_device(control.local_rank() % devices);
  });
  const std::vector<int> first = control.first_equal(memory_identity());
#ifdef PIPETRAIN_CUDA
  if (std::set(first.begin(), first.end()).size() < first.size()) {
    let_ranks_share_gpus(control.rank(), control.local_size() == control.size());
    if (control.rank() == 0) {
      fmt::print(stderr,
                 "pipetrain: warning: several ranks share a GPU: the numbers are right, the times "
                 "say nothing\n");
    }
  }
#endif
  size_t free_bytes = 0;
  agree(control, [&] {
    size_t total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  });
  return free_bytes / size_t(std::count(first.begin(), first.end(), first[size_t(control.rank())]));
}

void log_job(const Job& job, const std::string& device, Log& log) {
  const GptConfig& gpt = job.model.config;
  log.info(fmt::format(
      "GPT of {} layers, width {}, {} heads, vocabulary {}: {} parameters, {}; {} tokens of data",
      gpt.layers, gpt.hidden, gpt.heads, gpt.vocabulary, parameter_count(gpt),
      to_string(job.config.precision), job.tokens->size()));
  log.info(fmt::format(
      "{} on {} ranks, {} stages, replicas: {}; {} micro-batches of {} x {} tokens per "
      "step and replica; device: {}",
      job.schedule.name, job.grid.pipeline, job.schedule.placement.stages(), job.grid.replicas,
      job.batch.microbatches, job.batch.batch, job.batch.sequence, device));
  for (const std::string& warning : job.warnings) {
    log.warning(warning);
  }
  if (job.evaluation) {
    log.info(fmt::format("validation: {} of {} tokens, {}", job.evaluation->valid_targets(),
                         job.evaluation->tokens->size(), to_string(*job.evaluation)));
  }
  if (job.model.source) {
    for (const std::string& note : job.model.source->notes) {
      log.info(note);
    }
  }
  for (const std::string& note : job.notes) {
    log.info(note);
  }
}

void log_budgets(const Budget& budget, Control& control, Log& log) {
  const std::string text = to_string(budget);
  const auto budgets = control.gather(std::as_bytes(std::span(text.data(), text.size())), 0);
  for (size_t rank = 0; rank < budgets.size(); ++rank) {
    log.info(fmt::format("memory of rank {}: {}", rank,
                         std::string_view(reinterpret_cast<const char*>(budgets[rank].data()),
                                          budgets[rank].size())));
  }
}

}  // namespace pipetrain
