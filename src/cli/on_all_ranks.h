#pragma once

#include <functional>
#include <string>

#include "pipetrain/comm/control.h"

namespace pipetrain {

// The frame of a subcommand that mpirun starts on every rank: handles signals, starts MPI, does
// `work`, ends MPI. MPI waits for all ranks when it starts and when it ends; a rank that waits
// longer than `timeout_seconds` ends the process with exit code 4. Throws UsageError on all ranks
// where they were given different commands.
void on_all_ranks(const std::string& command, double timeout_seconds,
                  const std::function<void(Control&)>& work);

}  // namespace pipetrain
