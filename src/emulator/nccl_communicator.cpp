// Communicators: made from a unique id or by splitting another one, asked, and destroyed.

#include "emulator/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "emulator/nccl_group.h"
#include "emulator/stream.h"

namespace emulator::nccl {
namespace {

thread_local std::string last_error;

// The link on which this device hears from another one, whatever the communicator.
Link* link_from(const Member& peer, int device) {
  static std::mutex mutex;
  static std::map<std::tuple<int, std::string, int>, std::unique_ptr<Link>> links;
  const std::string process(reinterpret_cast<const char*>(peer.process), sizeof peer.process);
  const std::lock_guard lock(mutex);
  std::unique_ptr<Link>& link = links[{device, process, peer.device}];
  if (link == nullptr) {
    link = std::make_unique<Link>();
  }
  return link.get();
}

void check_count(const char* name, int value) {
  if (value != NCCL_CONFIG_UNDEF_INT && value < 1) {
    throw Failure(ncclInvalidArgument, fmt::format("{} is {}; it must be positive", name, value));
  }
}

ncclConfig_t checked(const ncclConfig_t* given, const ncclConfig_t& otherwise) {
  if (given == nullptr) {
    return otherwise;
  }
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
  if (given->size != fresh.size || given->magic != fresh.magic || given->version != fresh.version) {
    throw Failure(ncclInvalidArgument,
                  "the configuration was not made with NCCL_CONFIG_INITIALIZER");
  }
  if (given->blocking != NCCL_CONFIG_UNDEF_INT && given->blocking != 1) {
    throw Failure(ncclInvalidArgument,
                  fmt::format("blocking is {}; the emulator has blocking communicators only",
                              given->blocking));
  }
  check_count("minCTAs", given->minCTAs);
  check_count("maxCTAs", given->maxCTAs);
  if (given->minCTAs != NCCL_CONFIG_UNDEF_INT && given->maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      given->minCTAs > given->maxCTAs) {
    throw Failure(ncclInvalidArgument, fmt::format("minCTAs ({}) is above maxCTAs ({})",
                                                   given->minCTAs, given->maxCTAs));
  }
  if (given->splitShare != NCCL_CONFIG_UNDEF_INT && given->splitShare != 0 &&
      given->splitShare != 1) {
    throw Failure(ncclInvalidArgument,
                  fmt::format("splitShare is {}; it must be 0 or 1", given->splitShare));
  }
  return *given;
}

ncclComm_t make(const ncclUniqueId& id, int ranks, int rank, const ncclConfig_t& config,
                std::shared_ptr<Turnstile> turnstile) {
  auto comm = std::make_unique<ncclComm>();
  comm->rank = rank;
  comm->ranks = ranks;
  comm->device = current_device();
  comm->config = config;
  comm->turnstile = std::move(turnstile);
  comm->sends_to.resize(size_t(ranks));
  comm->receives_from.resize(size_t(ranks));
  const Listener listener;
  const std::vector<Member> members = join(id, ranks, rank, comm->device, listener);
  std::vector<Link*> links;
  for (const Member& member : members) {
    links.push_back(link_from(member, comm->device));
  }
  const bool one_process = std::all_of(members.begin(), members.end(), [&](const Member& member) {
    return same_process(member, members[0]);
  });
  comm->transport = one_process ? memory_transport(members, rank, id, std::move(links))
                                : socket_transport(members, rank, id, std::move(links), listener);
  return comm.release();
}

ncclComm_t split(ncclComm_t parent, int color, int key, const ncclConfig_t* given) {
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    throw Failure(
        ncclInvalidArgument,
        fmt::format("the colour is {}; it must be at least 0, or NCCL_SPLIT_NOCOLOR", color));
  }
  const ncclConfig_t config = checked(given, parent->config);
  Transport& transport = *parent->transport;
  Note mine;
  mine.kind = Note::splits;
  mine.color = color;
  mine.key = key;
  struct Place {
    int key, rank;
  };
  std::vector<Place> group;
  for (int peer = 0; peer < parent->ranks; ++peer) {
    if (peer != parent->rank) {
      transport.post(peer, mine);
    }
  }
  for (int peer = 0; peer < parent->ranks; ++peer) {
    const Note theirs = peer == parent->rank ? mine : transport.await(peer, Note::splits);
    if (theirs.color == color) {
      group.push_back({theirs.key, peer});
    }
  }
  if (color == NCCL_SPLIT_NOCOLOR) {
    return nullptr;
  }
  std::stable_sort(group.begin(), group.end(),
                   [](const Place& a, const Place& b) { return a.key < b.key; });
  const int leader = group[0].rank;
  Note invitation;
  invitation.kind = Note::invites;
  if (leader == parent->rank) {
    invitation.id = make_unique_id();
    for (size_t i = 1; i < group.size(); ++i) {
      transport.post(group[i].rank, invitation);
    }
  } else {
    invitation = transport.await(leader, Note::invites);
  }
  const auto me = std::find_if(group.begin(), group.end(),
                               [&](const Place& place) { return place.rank == parent->rank; });
  return make(invitation.id, int(group.size()), int(me - group.begin()), config,
              config.splitShare == 1 ? parent->turnstile : std::make_shared<Turnstile>());
}

void refuse_in_group(const char* call) {
  if (in_group()) {
    throw Failure(ncclInvalidUsage, fmt::format("{} inside a group is not implemented", call));
  }
}

template <class T>
ncclResult_t tell(ncclComm_t comm, T* result, T ncclComm::*field) {
  return guarded([&] {
    if (comm == nullptr || result == nullptr) {
      throw Failure(ncclInvalidArgument, "a null argument");
    }
    *result = comm->*field;
  });
}

}  // namespace

void check_usable(ncclComm_t comm) {
  if (comm == nullptr) {
    throw Failure(ncclInvalidArgument, "the communicator is null");
  }
  if (const ncclResult_t error = comm->async_error.load(); error != ncclSuccess) {
    throw Failure(error, comm->async_text);
  }
}

ncclResult_t remember(ncclResult_t result, const std::string& text) {
  last_error = text;
  complain("NCCL: " + text);
  return result;
}

}  // namespace emulator::nccl

using emulator::nccl::Failure;
using emulator::nccl::guarded;

void ncclComm::record_error(const std::string& text) {
  if (async_error.load() == ncclSuccess) {
    async_text = text;
    async_error.store(ncclInvalidUsage);
  }
  emulator::fail(device, cudaErrorUnknown, "NCCL: " + text);
}

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) {
    return ncclInvalidArgument;
  }
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm != nullptr && comm->async_error.load() != ncclSuccess) {
    return comm->async_text.c_str();
  }
  return emulator::nccl::last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return guarded([&] {
    if (id == nullptr) {
      throw Failure(ncclInvalidArgument, "a null argument");
    }
    *id = emulator::nccl::make_unique_id();
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return guarded([&] {
    if (comm == nullptr || nranks < 1 || nranks > emulator::nccl::most_ranks || rank < 0 ||
        rank >= nranks) {
      throw Failure(ncclInvalidArgument, fmt::format("rank {} of {} ranks", rank, nranks));
    }
    emulator::nccl::refuse_in_group("ncclCommInitRank");
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    *comm = emulator::nccl::make(id, nranks, rank, emulator::nccl::checked(config, fresh),
                                 std::make_shared<emulator::nccl::Turnstile>());
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config) {
  return guarded([&] {
    emulator::nccl::check_usable(comm);
    emulator::nccl::refuse_in_group("ncclCommSplit");
    if (newcomm == nullptr) {
      throw Failure(ncclInvalidArgument, "a null argument");
    }
    *newcomm = emulator::nccl::split(comm, color, key, config);
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return guarded([&] {
    emulator::nccl::refuse_in_group("ncclCommDestroy");
    if (comm != nullptr && comm->launched) {
      comm->turnstile->join(comm->last_ticket);
    }
    delete comm;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return guarded([&] {
    if (comm == nullptr || error == nullptr) {
      throw Failure(ncclInvalidArgument, "a null argument");
    }
    *error = comm->async_error.load();
  });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return emulator::nccl::tell(comm, count, &ncclComm::ranks);
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return emulator::nccl::tell(comm, rank, &ncclComm::rank);
}
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return emulator::nccl::tell(comm, device, &ncclComm::device);
}
