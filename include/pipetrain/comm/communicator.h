#pragma once

#include <nccl.h>

#include <source_location>
#include <span>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/device/stream.h"

namespace pipetrain {

void check(ncclResult_t status, const char* call,
           const std::source_location& where = std::source_location::current());

// A blocking NCCL communicator over some ranks of the job.
class Communicator {
 public:
  // Called by every rank of `members` (job ranks, ascending index = NCCL rank) and by no other; the
  // unique id travels over `control`. Ranks create the communicators they share in one global
  // order.
  Communicator(Control& control, const std::vector<int>& members, int max_ctas);
  ~Communicator();
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  ncclComm_t get() const { return comm_; }

  // Asynchronous on `stream`; peers are ranks of this communicator.
  void send(const void* data, size_t bytes, int peer, const Stream& stream);
  void receive(void* data, size_t bytes, int peer, const Stream& stream);
  void all_reduce_sum(void* data, size_t count, ncclDataType_t type, const Stream& stream);
  void all_gather(void* gathered, const void* data, size_t bytes, const Stream& stream);

  // Throws PeerLost or InternalError if an operation failed. For the watchdog.
  ncclResult_t async_error() const;

 private:
  ncclComm_t comm_ = nullptr;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace pipetrain
