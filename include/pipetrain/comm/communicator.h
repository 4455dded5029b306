#pragma once

#include <nccl.h>

#include <cstddef>
#include <source_location>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/device/stream.h"

namespace pipetrain {

// Throws PeerLost if the other end of a connection is gone, InternalError for everything else.
void check(ncclResult_t status, const char* call,
           const std::source_location& where = std::source_location::current());

// As NCCL writes it: 22809 is 2.28.9.
int nccl_version();

// A blocking NCCL communicator over some ranks of the job.
class Communicator {
 public:
  // Called by every rank of `members` (job ranks, index = NCCL rank) and by no other; the unique id
  // travels over `control`. Ranks create the communicators they share in one global order. NCCL
  // uses at most `max_ctas` thread blocks, a power of two.
  Communicator(Control& control, const std::vector<int>& members, int max_ctas);
  // Waits for its operations; while an exception is in flight it leaves the communicator alone, for
  // a peer may never come.
  ~Communicator();
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  ncclComm_t get() const { return comm_; }

  // Asynchronous on `stream`; peers and roots are ranks of this communicator.
  void send(const void* data, size_t bytes, int peer, const Stream& stream);
  void receive(void* data, size_t bytes, int peer, const Stream& stream);
  void broadcast(void* data, size_t bytes, int root, const Stream& stream);
  // In place.
  void all_reduce_sum(void* data, size_t count, ncclDataType_t type, const Stream& stream);
  // data: size() pieces of `count` each; part: the sum of all ranks' piece number rank().
  void reduce_scatter_sum(void* part, const void* data, size_t count, ncclDataType_t type,
                          const Stream& stream);
  // gathered: size() pieces of `bytes` each, in rank order.
  void all_gather(void* gathered, const void* data, size_t bytes, const Stream& stream);

  // An error of an operation that runs, or ncclSuccess. For the watchdog: callable from any thread,
  // never throws.
  ncclResult_t async_error() const noexcept;

 private:
  ncclComm_t comm_ = nullptr;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace pipetrain
