#pragma once

#include <cstddef>
#include <string>

#include "pipetrain/comm/control.h"
#include "pipetrain/runtime/watchdog.h"
#include "pipetrain/train/budget.h"
#include "pipetrain/train/job.h"
#include "pipetrain/train/log.h"
#include "pipetrain/train/train_config.h"

namespace pipetrain {

// What training and evaluating have in common before anything is computed.

// Prints and leaves with exit code 4. Actions are told by pipeline ranks; where there are replicas
// it is said of which one.
Watchdog::Expire expire_on(int rank, int replicas);

// The flags that all ranks must have in common, as "--flag value --flag value". Of paths it is said
// only whether they are given: they may be others on another machine. Compared before anything that
// depends on them is done together.
std::string common_flags(const TrainConfig& config);

// Selects this rank's device; returns its free memory in bytes, or this rank's share of it where
// several ranks use the device, which NCCL is then told. What the host emulates has one memory for
// all ranks of the host, unless PIPETRAIN_EMULATOR_MEMORY gives each device its own. Throws
// AgreedError where a rank has no device. Collective, before NCCL is called.
size_t select_own_device(Control& control);

// Writes what is trained, on what and how, with the job's warnings and notes.
void log_job(const Job& job, const std::string& device, Log& log);

// Writes the budgets of all ranks into the log of rank 0. Collective.
void log_budgets(const Budget& budget, Control& control, Log& log);

}  // namespace pipetrain
