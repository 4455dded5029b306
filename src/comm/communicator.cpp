#include "pipetrain/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// The first member makes the id and sends it to the others.
ncclUniqueId shared_id(Control& control, const std::vector<int>& members) {
  ncclUniqueId id = {};
  if (control.rank() == members.front()) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    for (size_t i = 1; i < members.size(); ++i) {
      control.send(std::as_bytes(std::span(&id, 1)), members[i]);
    }
    return id;
  }
  const std::vector<std::byte> received = control.receive(members.front());
  if (received.size() != sizeof(id)) {
    throw InternalError(fmt::format("{} bytes from rank {} where the id of a communicator was due",
                                    received.size(), members.front()));
  }
  std::memcpy(&id, received.data(), sizeof(id));
  return id;
}

}  // namespace

void check(ncclResult_t status, const char* call, const std::source_location& where) {
  if (status == ncclSuccess) {
    return;
  }
  const std::string_view path = where.file_name();
  const std::string message =
      fmt::format("{}: {}; {}, at {}:{}", call, ncclGetErrorString(status),
                  ncclGetLastError(nullptr), path.substr(path.rfind('/') + 1), where.line());
  if (status == ncclRemoteError) {
    throw PeerLost(message);
  }
  throw InternalError(message);
}

int nccl_version() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return version;
}

Communicator::Communicator(Control& control, const std::vector<int>& members, int max_ctas)
    : size_(int(members.size())) {
  const auto self = std::find(members.begin(), members.end(), control.rank());
  if (self == members.end()) {
    throw InternalError(
        fmt::format("rank {} creates a communicator that it is no member of", control.rank()));
  }
  rank_ = int(self - members.begin());
  const ncclUniqueId id = shared_id(control, members);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = max_ctas;
  check(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig");
}

Communicator::~Communicator() {
  if (comm_ == nullptr || std::uncaught_exceptions() != 0) {
    return;
  }
  const ncclResult_t status = ncclCommDestroy(comm_);
  if (status != ncclSuccess) {
    std::fprintf(stderr, "ncclCommDestroy: %s\n", ncclGetErrorString(status));
  }
}

Communicator::Communicator(Communicator&& other) noexcept
    : comm_(std::exchange(other.comm_, nullptr)), rank_(other.rank_), size_(other.size_) {}

void Communicator::send(const void* data, size_t bytes, int peer, const Stream& stream) {
  check(ncclSend(data, bytes, ncclInt8, peer, comm_, stream.get()), "ncclSend");
}

void Communicator::receive(void* data, size_t bytes, int peer, const Stream& stream) {
  check(ncclRecv(data, bytes, ncclInt8, peer, comm_, stream.get()), "ncclRecv");
}

void Communicator::broadcast(void* data, size_t bytes, int root, const Stream& stream) {
  check(ncclBroadcast(data, data, bytes, ncclInt8, root, comm_, stream.get()), "ncclBroadcast");
}

void Communicator::all_reduce_sum(void* data, size_t count, ncclDataType_t type,
                                  const Stream& stream) {
  check(ncclAllReduce(data, data, count, type, ncclSum, comm_, stream.get()), "ncclAllReduce");
}

void Communicator::reduce_scatter_sum(void* part, const void* data, size_t count,
                                      ncclDataType_t type, const Stream& stream) {
  check(ncclReduceScatter(data, part, count, type, ncclSum, comm_, stream.get()),
        "ncclReduceScatter");
}

void Communicator::all_gather(void* gathered, const void* data, size_t bytes,
                              const Stream& stream) {
  check(ncclAllGather(data, gathered, bytes, ncclInt8, comm_, stream.get()), "ncclAllGather");
}

ncclResult_t Communicator::async_error() const noexcept {
  ncclResult_t error = ncclSuccess;
  const ncclResult_t status = ncclCommGetAsyncError(comm_, &error);
  return status == ncclSuccess ? error : status;
}

}  // namespace pipetrain
