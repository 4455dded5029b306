#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pipetrain {

// Control data between all ranks of a job, at start and end: never tensors of a step. By MPI, or by
// threads of one process for tests. Collective calls are made by all ranks in the same order.
// Waiting sleeps.
class Control {
 public:
  virtual ~Control() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Rank among the ranks of this host, and their number.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;

  virtual void barrier() = 0;
  // `data` of root replaces that of all others, its size included.
  virtual void broadcast(std::vector<std::byte>& data, int root) = 0;
  // One entry per rank, in rank order, on root; empty elsewhere.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> data, int root) = 0;
  virtual void send(std::span<const std::byte> data, int destination) = 0;
  virtual std::vector<std::byte> receive(int source) = 0;

  // Throws UsageError on every rank when `value` differs between ranks; `what` names it.
  void require_equal(const std::string& value, const std::string& what);
  std::string broadcast(const std::string& text, int root);
};

// Initialises MPI (and finalises it when destroyed). Throws UsageError when N jobs of one rank run
// although several ranks were started (srun without PMI: size 1 with SLURM_NTASKS > 1).
std::unique_ptr<Control> make_mpi_control();
std::string mpi_library_version();

// `ranks` controls, one per thread, connected with each other. If one of the threads calls abort()
// on the group (a test's rank has thrown), every waiting call throws PeerLost.
class ThreadGroup {
 public:
  explicit ThreadGroup(int ranks);
  ~ThreadGroup();
  Control& control(int rank);
  void abort();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipetrain
