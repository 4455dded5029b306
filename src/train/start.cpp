#include "train/start.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <span>
#include <string_view>

#include "pipetrain/device/check.h"
#include "pipetrain/device/info.h"
#include "pipetrain/error.h"
#include "pipetrain/model/flops.h"

namespace pipetrain {

Watchdog::Expire expire_on(int rank, int replicas) {
  if (replicas <= 1) {
    return Watchdog::exit_process();
  }
  return [rank, replicas, exit = Watchdog::exit_process()](const std::string& reason) {
    exit(fmt::format("replica {} (rank {} of the job): {}", rank % replicas, rank, reason));
  };
}

size_t select_own_device(const Control& control) {
  if (device_count() == 0) {
    throw UsageError(fmt::format("no GPU: {}; the host flavour needs none", device_problem()));
  }
  select_device(control.local_rank() % device_count());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return free_bytes;
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
