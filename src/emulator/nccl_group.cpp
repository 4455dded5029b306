// NCCL's operations: checked, gathered into groups, connected on first use, and put on streams.

#include "emulator/nccl_group.h"

#include <emulator.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace emulator::nccl {
namespace {

// The group that the calling thread has open, or its single call.
struct Group {
  int depth = 0;
  std::vector<std::unique_ptr<Batch>> batches;
  ncclResult_t error = ncclSuccess;  // of a call inside the group
};
thread_local Group group;

// ---- checks
void check_type(ncclDataType_t type) {
  if (type_bytes(type) == 0) {
    throw Failure(ncclInvalidArgument, fmt::format("type {} is not implemented", int(type)));
  }
}

void check_rank(const ncclComm& comm, const char* what, int rank) {
  if (rank < 0 || rank >= comm.ranks) {
    throw Failure(ncclInvalidArgument,
                  fmt::format("{} is {}; the communicator has {} ranks", what, rank, comm.ranks));
  }
}

void check_stream(ncclComm_t comm, cudaStream_t stream) {
  check_usable(comm);
  if (const cudaError_t error = failure(comm->device); error != cudaSuccess) {
    throw Failure(ncclUnhandledCudaError,
                  fmt::format("device {}: {}", comm->device, cudaGetErrorString(error)));
  }
  if (stream == nullptr || device_of(stream) != comm->device) {
    throw Failure(
        ncclInvalidArgument,
        fmt::format("the stream is not one of the communicator's device {}", comm->device));
  }
}

void check_buffer(const ncclComm& comm, const void* buffer, size_t bytes) {
  if (bytes > 0 && !is_device_memory(comm.device, buffer, bytes)) {
    throw Failure(ncclInvalidArgument,
                  fmt::format("a buffer of {} bytes does not lie in one allocation of device {}",
                              bytes, comm.device));
  }
}

// Overlapping buffers are allowed only where NCCL documents them as in place.
void check_overlap(const void* send, size_t send_bytes, const void* receive, size_t receive_bytes,
                   const void* in_place) {
  const auto from = reinterpret_cast<uintptr_t>(send);
  const auto to = reinterpret_cast<uintptr_t>(receive);
  if (from < to + receive_bytes && to < from + send_bytes && receive != in_place) {
    throw Failure(ncclInvalidUsage,
                  "the buffers overlap and are not where an operation in place has them");
  }
}

size_t bytes_of(size_t count, ncclDataType_t type, int times = 1) {
  check_type(type);
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, type_bytes(type), &bytes) ||
      __builtin_mul_overflow(bytes, size_t(times), &bytes)) {
    throw Failure(ncclInvalidArgument, fmt::format("count {} is too large", count));
  }
  return bytes;
}

// ---- launching
// Sends of a rank to itself need their receives in the same group.
void pair_with_self(Batch& batch) {
  std::vector<Transfer> ends[2];
  for (const Transfer& transfer : batch.to_self) {
    ends[transfer.sends].push_back(transfer);
  }
  if (ends[0].size() != ends[1].size()) {
    throw Failure(ncclInvalidUsage,
                  "a send of a rank to itself without its receive in the same group");
  }
  for (size_t i = 0; i < ends[0].size(); ++i) {
    if (!(ends[0][i].envelope == ends[1][i].envelope)) {
      throw Failure(ncclInvalidUsage,
                    disagreement(batch.comm->rank, ends[1][i], ends[0][i].envelope));
    }
    batch.copies.push_back({ends[1][i].data, ends[0][i].data, ends[0][i].envelope.bytes});
  }
}

// The first uses in these batches tell the peers and wait for them. All are told before any is
// waited for, as the communicators of one group connect side by side.
void connect_first_uses(const std::vector<std::unique_ptr<Batch>>& batches) {
  struct Expected {
    Transport* transport;
    int peer;
    Note::Kind kind;
  };
  std::vector<Expected> expected;
  const auto tell = [&](ncclComm& comm, int peer, Note::Kind mine, Note::Kind theirs) {
    Note note;
    note.kind = mine;
    comm.transport->post(peer, note);
    expected.push_back({comm.transport.get(), peer, theirs});
  };
  for (const std::unique_ptr<Batch>& batch : batches) {
    ncclComm& comm = *batch->comm;
    if (!batch->collectives.empty() && !comm.collectives) {
      comm.collectives = true;
      for (int peer = 0; peer < comm.ranks; ++peer) {
        if (peer != comm.rank) {
          tell(comm, peer, Note::starts_collectives, Note::starts_collectives);
        }
      }
    }
    for (const Transfer& transfer : batch->transfers) {
      std::vector<bool>& used = transfer.sends ? comm.sends_to : comm.receives_from;
      if (!used[size_t(transfer.peer)]) {
        used[size_t(transfer.peer)] = true;
        tell(comm, transfer.peer, transfer.sends ? Note::wants_to_send : Note::wants_to_receive,
             transfer.sends ? Note::wants_to_receive : Note::wants_to_send);
      }
    }
  }
  for (const Expected& note : expected) {
    note.transport->await(note.peer, note.kind);
  }
}

void run_on_stream(Batch* batch) {
  const std::unique_ptr<Batch> owned(batch);
  Turnstile& turnstile = *batch->comm->turnstile;
  if (batch->turn) {
    batch->turn->begin();
  }
  turnstile.enter(batch->ticket);
  perform(*batch);
  turnstile.leave();  // from here on the communicator may be gone
  if (batch->turn) {
    batch->turn->end();
  }
}

void launch(std::vector<std::unique_ptr<Batch>> batches) {
  for (const std::unique_ptr<Batch>& batch : batches) {
    pair_with_self(*batch);
  }
  connect_first_uses(batches);
  const Settings now = settings();
  for (std::unique_ptr<Batch>& batch : batches) {
    ncclComm& comm = *batch->comm;
    if (now.link_device < 0 || now.link_device == comm.device) {
      batch->speed = {now.link_latency_us, now.link_bytes_per_us};
    }
    batch->ticket = comm.turnstile->take_ticket();
    comm.launched = true;
    comm.last_ticket = batch->ticket;
    if (now.one_at_a_time) {
      batch->turn = take_turn(comm.device);
    }
    Batch* const handed_over = batch.release();
    submit(handed_over->stream, [handed_over] { run_on_stream(handed_over); });
  }
}

// ---- one call
Batch& batch_of(ncclComm_t comm, cudaStream_t stream) {
  for (const std::unique_ptr<Batch>& batch : group.batches) {
    if (batch->comm == comm) {
      if (batch->stream != stream) {
        throw Failure(ncclInvalidUsage,
                      "one communicator on two streams in one group is not implemented");
      }
      return *batch;
    }
  }
  group.batches.push_back(std::make_unique<Batch>());
  group.batches.back()->comm = comm;
  group.batches.back()->stream = stream;
  return *group.batches.back();
}

ncclResult_t start() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t end() {
  return guarded([] {
    if (group.depth == 0) {
      throw Failure(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (--group.depth > 0) {
      return;
    }
    std::vector<std::unique_ptr<Batch>> batches = std::exchange(group.batches, {});
    if (const ncclResult_t error = std::exchange(group.error, ncclSuccess); error != ncclSuccess) {
      throw Failure(error, std::string("a call of the group failed, so none of it was started: ") +
                               ncclGetLastError(nullptr));
    }
    launch(std::move(batches));
  });
}

// Checks and adds one operation; alone it is a group of its own.
template <class Add>
ncclResult_t call(ncclComm_t comm, cudaStream_t stream, const Add& add) {
  start();
  const ncclResult_t result = guarded([&] {
    check_stream(comm, stream);
    add();
  });
  if (result != ncclSuccess) {
    if (group.depth == 1) {
      group = {};
    } else {
      --group.depth;
      group.error = result;
    }
    return result;
  }
  return end();
}

ncclResult_t point_to_point(bool sends, void* buffer, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, [&] {
    const size_t bytes = bytes_of(count, type);
    check_rank(*comm, "the peer", peer);
    check_buffer(*comm, buffer, bytes);
    const Envelope envelope{Operation::point_to_point, type, count, 0, 0, bytes};
    Batch& batch = batch_of(comm, stream);
    (peer == comm->rank ? batch.to_self : batch.transfers)
        .push_back({sends, peer, buffer, envelope});
  });
}

// Empty collective operations do nothing, as in NCCL.
void add_collective(ncclComm_t comm, cudaStream_t stream, const Collective& collective) {
  if (collective.envelope.count > 0) {
    batch_of(comm, stream).collectives.push_back(collective);
  }
}

void check_reduction(ncclRedOp_t op) {
  if (op != ncclSum && op != ncclMax) {
    throw Failure(ncclInvalidArgument, fmt::format("reduction {} is not implemented", int(op)));
  }
}

const void* at(const void* buffer, size_t offset) {
  return static_cast<const char*>(buffer) + offset;
}

}  // namespace

size_t type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

bool in_group() {
  return group.depth > 0;
}

}  // namespace emulator::nccl

using emulator::nccl::Envelope;
using emulator::nccl::Operation;

ncclResult_t ncclGroupStart() {
  return emulator::nccl::start();
}
ncclResult_t ncclGroupEnd() {
  return emulator::nccl::end();
}

ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return emulator::nccl::point_to_point(true, const_cast<void*>(buffer), count, type, peer, comm,
                                        stream);
}

ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return emulator::nccl::point_to_point(false, buffer, count, type, peer, comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  namespace nccl = emulator::nccl;
  return nccl::call(comm, stream, [&] {
    const size_t bytes = nccl::bytes_of(count, type);
    nccl::check_reduction(op);
    nccl::check_buffer(*comm, send, bytes);
    nccl::check_buffer(*comm, receive, bytes);
    nccl::check_overlap(send, bytes, receive, bytes, send);
    const Envelope envelope{Operation::all_reduce, type, count, op, 0, 0};
    nccl::add_collective(comm, stream, {envelope, send, receive});
  });
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  namespace nccl = emulator::nccl;
  return nccl::call(comm, stream, [&] {
    const size_t bytes = nccl::bytes_of(receive_count, type);
    const size_t all_bytes = nccl::bytes_of(receive_count, type, comm->ranks);
    nccl::check_reduction(op);
    nccl::check_buffer(*comm, send, all_bytes);
    nccl::check_buffer(*comm, receive, bytes);
    nccl::check_overlap(send, all_bytes, receive, bytes,
                        nccl::at(send, bytes * size_t(comm->rank)));
    const Envelope envelope{Operation::reduce_scatter, type, receive_count, op, 0, 0};
    nccl::add_collective(comm, stream, {envelope, send, receive});
  });
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  namespace nccl = emulator::nccl;
  return nccl::call(comm, stream, [&] {
    const size_t bytes = nccl::bytes_of(send_count, type);
    const size_t all_bytes = nccl::bytes_of(send_count, type, comm->ranks);
    nccl::check_buffer(*comm, send, bytes);
    nccl::check_buffer(*comm, receive, all_bytes);
    nccl::check_overlap(receive, all_bytes, send, bytes,
                        nccl::at(receive, bytes * size_t(comm->rank)));
    const Envelope envelope{Operation::all_gather, type, send_count, 0, 0, 0};
    nccl::add_collective(comm, stream, {envelope, send, receive});
  });
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  namespace nccl = emulator::nccl;
  return nccl::call(comm, stream, [&] {
    const size_t bytes = nccl::bytes_of(count, type);
    nccl::check_rank(*comm, "the root", root);
    if (comm->rank == root) {
      nccl::check_buffer(*comm, send, bytes);
      nccl::check_overlap(send, bytes, receive, bytes, send);
    }
    nccl::check_buffer(*comm, receive, bytes);
    const Envelope envelope{Operation::broadcast, type, count, 0, root, 0};
    nccl::add_collective(comm, stream, {envelope, send, receive});
  });
}
