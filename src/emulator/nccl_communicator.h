#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "emulator/nccl_transport.h"

struct ncclComm {
  int rank = 0;
  int ranks = 0;
  int device = 0;
  ncclConfig_t config{};
  std::unique_ptr<emulator::nccl::Transport> transport;

  // The operations of a communicator pass one at a time; a child with splitShare uses its parent's.
  std::shared_ptr<emulator::nccl::Turnstile> turnstile;
  bool launched = false;
  uint32_t last_ticket = 0;  // once launched

  // ---- for the host thread: which peers have answered a first use
  std::vector<bool> sends_to;
  std::vector<bool> receives_from;
  bool collectives = false;

  // ---- set by an operation, once; the text first
  std::string async_text;
  std::atomic<ncclResult_t> async_error{ncclSuccess};

  void record_error(const std::string& text);
};

namespace emulator::nccl {

// Throws Failure unless the handle is one and has had no asynchronous error.
void check_usable(ncclComm_t comm);
// Runs body and turns what it throws into a result and this thread's last error text.
ncclResult_t remember(ncclResult_t result, const std::string& text);
template <class Body>
ncclResult_t guarded(const Body& body) {
  try {
    body();
    return ncclSuccess;
  } catch (const Failure& failure) {
    return remember(failure.result(), failure.what());
  } catch (const std::exception& error) {
    return remember(ncclInternalError, error.what());
  }
}

}  // namespace emulator::nccl
