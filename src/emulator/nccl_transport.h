#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "emulator/nccl_bootstrap.h"
#include "emulator/nccl_quiet.h"

// How the ranks of one communicator reach each other: through memory when all are threads of one
// process, else through Unix sockets.
namespace emulator::nccl {

enum class Operation : uint32_t {
  point_to_point,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
};

// What both ends of a message must agree on.
struct Envelope {
  Operation operation = Operation::point_to_point;
  int32_t type = 0;
  uint64_t count = 0;
  int32_t reduction = 0;
  int32_t root = 0;
  uint64_t bytes = 0;  // of this message

  bool operator==(const Envelope&) const = default;
};
const char* type_name(ncclDataType_t type);

struct Transfer {
  bool sends = false;
  int peer = 0;
  void* data = nullptr;  // read only when it sends
  Envelope envelope;
};

// Says how the two ends of a transfer differ.
std::string disagreement(int rank, const Transfer& mine, const Envelope& theirs);

// A word between the host threads of two ranks, outside the stream order.
struct Note {
  enum Kind : uint32_t { wants_to_send, wants_to_receive, starts_collectives, splits, invites };
  Kind kind = wants_to_send;
  int32_t color = 0;
  int32_t key = 0;
  ncclUniqueId id{};
};

class Transport {
 public:
  virtual ~Transport() = default;

  // ---- for the host thread of the communicator
  virtual void post(int peer, const Note& note) = 0;
  // The peer's oldest note of this kind; sleeps until there is one.
  virtual Note await(int peer, Note::Kind kind) = 0;

  // ---- for one operation at a time
  // Performs all transfers jointly; those with one peer in one direction in their order. Sleeps
  // until the last has ended. A transfer on which the two ends disagree ends without its data;
  // both report it, in words, as soon as they know.
  using Report = std::function<void(const std::string& disagreement)>;
  virtual void exchange(std::span<const Transfer> transfers, const LinkSpeed& speed,
                        const Report& report) = 0;
};

// links[r]: the link on which messages from rank r arrive.
std::unique_ptr<Transport> memory_transport(const std::vector<Member>& members, int rank,
                                            const ncclUniqueId& id, std::vector<Link*> links);
std::unique_ptr<Transport> socket_transport(const std::vector<Member>& members, int rank,
                                            const ncclUniqueId& id, std::vector<Link*> links,
                                            const Listener& listener);

// The transfers with one peer in one direction, which happen one after another, and how far the
// current one is.
struct Flow {
  bool sends = false;
  int peer = 0;
  std::vector<const Transfer*> queue;
  size_t finished = 0;
  bool started = false;
  uint64_t moved = 0;      // bytes of the current message
  int64_t arrival_ns = 0;  // when the link will have delivered it; known once `started`

  bool done() const { return finished == queue.size(); }
  const Transfer& now() const { return *queue[finished]; }
  void finish();
};
std::vector<Flow> flows_of(std::span<const Transfer> transfers);

}  // namespace emulator::nccl
