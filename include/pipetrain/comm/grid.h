#pragma once

namespace pipetrain {

// rank = (pipeline_rank*D + replica)*T + tensor_rank, T = 1 today.
struct Grid {
  int pipeline = 1;  // p
  int replicas = 1;  // D
  int rank = 0;

  int ranks() const { return pipeline * replicas; }
  int pipeline_rank() const { return rank / replicas; }
  int replica() const { return rank % replicas; }
  // The job's rank of another pipeline rank of this replica.
  int peer(int pipeline_rank) const { return pipeline_rank * replicas + replica(); }
};

// p = ranks / D. Throws UsageError naming --data-parallel unless D divides the number of ranks.
Grid make_grid(int ranks, int rank, int data_parallel);

}  // namespace pipetrain
