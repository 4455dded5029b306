#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pipetrain {

// Control data between all ranks of a job, at start and end: never tensors of a step. By MPI, or by
// threads of one process for tests. Collective calls are made by all ranks in the same order, each
// rank's from one thread at a time. Waiting sleeps; sizes are not limited. Where a rank is gone,
// MPI ends the job or throws InternalError; between threads a call throws PeerLost.
class Control {
 public:
  virtual ~Control() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Rank among the ranks of this host, and their number.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;

  // `data` of root replaces that of all others, its size included.
  virtual void broadcast(std::vector<std::byte>& data, int root) = 0;
  // In order between two ranks. May wait until the destination receives.
  virtual void send(std::span<const std::byte> data, int destination) = 0;
  virtual std::vector<std::byte> receive(int source) = 0;

  // Long work of this rank goes on: ranks that wait in one of these calls, or will, hear of it. Not
  // a collective call, and one that never waits. Called often, it tells others now and then.
  virtual void tell_progress() = 0;
  // What is called, on this rank's thread, when another rank has told of progress. Null: nothing.
  void on_progress(std::function<void()> heard) { heard_ = std::move(heard); }

  // By way of rank 0, so that a rank that is missing is known: awaited() tells it there.
  void barrier();
  // One entry per rank, in rank order, on root; empty elsewhere.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> data, int root);
  // Throws UsageError on every rank when `value` differs between ranks; `what` names it. The
  // message shows the first difference: of "--flag value --flag value" the flag, else part of the
  // line.
  void require_equal(const std::string& value, const std::string& what);
  // Of every rank the first one that has the same value, on all ranks.
  std::vector<int> first_equal(const std::string& value);
  // The text of root, on all ranks.
  std::string broadcast(const std::string& text, int root);

  // The rank that this one waits for in a call now, -1 if for none or for all. Any thread may ask.
  int awaited() const { return awaited_; }

 protected:
  // A call waits for `rank`, from construction to destruction.
  class Wait {
   public:
    Wait(Control& control, int rank) : control_(control) { control_.awaited_ = rank; }
    ~Wait() { control_.awaited_ = -1; }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Control& control_;
  };

  void hear_progress() const {
    if (heard_) {
      heard_();
    }
  }

 private:
  std::function<void()> heard_;
  std::atomic<int> awaited_{-1};
};

// Initialises MPI (and finalises it when destroyed, unless an exception is in flight: the others
// would be waited for). Throws UsageError when N jobs of one rank run although several ranks were
// started (srun without PMIx: size 1 with SLURM_NTASKS > 1). At most one at a time.
std::unique_ptr<Control> make_mpi_control();
std::string mpi_library_version();

// The end of a rank that failed: flushes standard output and error and leaves the process at once.
// Nothing is freed, synchronised or finalised, for any of these may wait for a peer. mpirun then
// ends the other ranks and returns `code`, which must not be 0.
[[noreturn]] void end_job(int code);

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
