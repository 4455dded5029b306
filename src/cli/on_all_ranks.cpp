#include "cli/on_all_ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>

#include "pipetrain/comm/environment.h"
#include "pipetrain/runtime/watchdog.h"

namespace pipetrain {
namespace {

void within_deadline(double seconds, const std::string& what,
                     const std::function<void(Watchdog&)>& work) {
  Watchdog watchdog(std::chrono::duration<double>(seconds), Watchdog::exit_process());
  const Watchdog::HostPhase phase(&watchdog, what);
  work(watchdog);
}

// A deadline's message then names the rank that `control` waits for.
void naming_ranks(Watchdog& watchdog, Control& control, const std::function<void()>& work) {
  watchdog.set_awaited([&control] { return control.awaited(); });
  work();
  watchdog.set_awaited(nullptr);
}

}  // namespace

void on_all_ranks(const std::string& command, double timeout_seconds,
                  const std::function<void(Control&)>& work) {
  install_signal_handlers();
  std::unique_ptr<Control> control;
  within_deadline(
      timeout_seconds, fmt::format("rank {} waits for all ranks to start", launched_rank()),
      [&](Watchdog& watchdog) {
        control = make_mpi_control();
        naming_ranks(watchdog, *control, [&] { control->require_equal(command, "the command"); });
      });
  work(*control);
  within_deadline(timeout_seconds,
                  fmt::format("rank {} waits for all ranks to end", control->rank()),
                  [&](Watchdog& watchdog) {
                    naming_ranks(watchdog, *control, [&] { control->barrier(); });
                    control.reset();
                  });
}

}  // namespace pipetrain
