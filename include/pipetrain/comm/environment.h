#pragma once

#include <string>

namespace pipetrain {

// Sets what CUDA and NCCL read from the environment, unless the user has: enough hardware queues
// for all streams, kernels loaded before the first step, NCCL kernels launched in one order. To be
// called before the first CUDA call and before any thread is started.
void set_environment();

// How many ranks the launcher says it has started, from its environment variables; 0 if none says.
int ranks_started();
// This process's rank according to the launcher; 0 if none says.
int launched_rank();

// Throws UsageError if MPI sees one rank where the launcher has started several.
void refuse_jobs_of_one_rank(int mpi_ranks);

// Of the running system, or else of the host by its name: ranks that have the same one share its
// memory and, in other containers too, its GPUs.
std::string host_identity();

// NCCL refuses two ranks on one GPU unless they seem to be on different hosts. Makes this rank seem
// to be alone on one, unless the user has set how NCCL is to take them; sockets are then the only
// way between ranks, those of `one_host` by the loopback. To be called on all ranks before NCCL is.
void let_ranks_share_gpus(int rank, bool one_host);

}  // namespace pipetrain
