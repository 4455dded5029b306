#pragma once

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

}  // namespace pipetrain
