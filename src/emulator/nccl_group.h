#pragma once

#include <nccl.h>

#include <optional>
#include <vector>

#include "emulator/nccl_communicator.h"
#include "emulator/stream.h"

// Operations from the host's call to the stream's thread.
namespace emulator::nccl {

size_t type_bytes(ncclDataType_t type);

struct Collective {
  Envelope envelope;  // without the bytes, which each of its messages has its own
  const void* send = nullptr;
  void* receive = nullptr;
};

struct Copy {
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
};

// What one communicator does in one group: one operation of a stream.
struct Batch {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Collective> collectives;
  std::vector<Transfer> transfers;  // with other ranks
  std::vector<Copy> copies;         // from this rank to itself
  std::vector<Transfer> to_self;    // before they are paired into copies
  LinkSpeed speed;
  uint32_t ticket = 0;
  std::optional<Turn> turn;  // in the mode in which a device's operations run one at a time
};

// Whether the calling thread is between ncclGroupStart and ncclGroupEnd.
bool in_group();

// Performs a batch on the calling thread, which may sleep in it.
void perform(const Batch& batch);

}  // namespace emulator::nccl
