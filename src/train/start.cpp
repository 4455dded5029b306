#include "train/start.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <span>
#include <string_view>

#include "pipetrain/device/check.h"
#include "pipetrain/device/info.h"
#include "pipetrain/error.h"

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
