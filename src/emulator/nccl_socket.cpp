// Messages between processes of one host, over three Unix sockets per pair of ranks: one for the
// notes of the host threads, one for the data in each direction. On a data socket the sender writes
// an envelope and the data; the receiver answers with its own envelope once it has taken the data.
// A peer that has gone is not noticed: what waits for it goes on waiting, as on NVLink.

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "emulator/nccl_transport.h"

namespace emulator::nccl {
namespace {

constexpr int send_buffer_bytes = 1 << 20;

struct Peer {
  Socket notes;
  Socket sends;
  Socket receives;
  std::deque<Note> unclaimed;
};

// One flow on its socket.
struct SocketFlow : Flow {
  SocketFlow(const Flow& flow, int socket) : Flow(flow), fd(socket) {}

  int fd;
  Envelope theirs;
  size_t theirs_bytes = 0;  // of `theirs`, that have come

  void next_message() {
    finish();
    theirs_bytes = 0;
  }
};

// What a flow that cannot move on is waiting for.
enum class Waits { nothing, readable, writable, arrival, for_ever };

[[noreturn]] void sleep_forever() {
  for (;;) {
    poll(nullptr, 0, -1);
  }
}

class SocketTransport : public Transport {
 public:
  SocketTransport(const std::vector<Member>& members, int rank, const unsigned char (&secret)[16],
                  std::vector<Link*> links, const Listener& listener)
      : rank_(rank), links_(std::move(links)), peers_(members.size()) {
    const int ranks = int(members.size());
    Greeting mine;
    std::memcpy(mine.secret, secret, sizeof mine.secret);
    mine.rank = rank;
    for (int peer = 0; peer < rank; ++peer) {
      for (const Purpose purpose : {Purpose::notes, Purpose::to_send, Purpose::to_receive}) {
        mine.purpose = purpose;
        keep(peer, purpose, connect_to(members[size_t(peer)].address, mine));
      }
    }
    for (int missing = 3 * (ranks - 1 - rank); missing > 0;) {
      Greeting theirs;
      Socket socket = listener.accept(secret, theirs);
      if (theirs.rank <= rank || theirs.rank >= ranks) {
        continue;
      }
      const Purpose purpose = theirs.purpose == Purpose::to_send      ? Purpose::to_receive
                              : theirs.purpose == Purpose::to_receive ? Purpose::to_send
                                                                      : theirs.purpose;
      keep(theirs.rank, purpose, std::move(socket));
      --missing;
    }
  }

  void post(int peer, const Note& note) override {
    peers_[size_t(peer)].notes.write_all(&note, sizeof note);
  }

  Note await(int peer, Note::Kind kind) override {
    Peer& from = peers_[size_t(peer)];
    const auto wanted = [kind](const Note& note) { return note.kind == kind; };
    for (;;) {
      const auto found = std::find_if(from.unclaimed.begin(), from.unclaimed.end(), wanted);
      if (found != from.unclaimed.end()) {
        const Note note = *found;
        from.unclaimed.erase(found);
        return note;
      }
      Note note;
      if (!from.notes.read_all(&note, sizeof note)) {
        sleep_forever();
      }
      from.unclaimed.push_back(note);
    }
  }

  void exchange(std::span<const Transfer> transfers, const LinkSpeed& speed,
                const Report& report) override {
    std::vector<SocketFlow> flows;
    for (const Flow& flow : flows_of(transfers)) {
      const Peer& peer = peers_[size_t(flow.peer)];
      flows.emplace_back(flow, flow.sends ? peer.sends.fd() : peer.receives.fd());
    }
    for (;;) {
      std::vector<pollfd> polled;
      bool all_done = true;
      int64_t wake_at = never;
      for (SocketFlow& flow : flows) {
        Waits waits = Waits::nothing;
        while (!flow.done() && waits == Waits::nothing) {
          waits = flow.sends ? advance_send(flow, report) : advance_receive(flow, speed, report);
        }
        all_done &= flow.done();
        if (waits == Waits::readable || waits == Waits::writable) {
          polled.push_back({flow.fd, short(waits == Waits::readable ? POLLIN : POLLOUT), 0});
        } else if (waits == Waits::arrival) {
          wake_at = std::min(wake_at, flow.arrival_ns);
        }
      }
      if (all_done) {
        return;
      }
      sleep(polled, wake_at);
    }
  }

 private:
  void keep(int peer, Purpose purpose, Socket socket) {
    Peer& kept = peers_[size_t(peer)];
    if (purpose == Purpose::notes) {
      kept.notes = std::move(socket);
      return;
    }
    fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
    setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
    (purpose == Purpose::to_send ? kept.sends : kept.receives) = std::move(socket);
  }

  static void sleep(std::vector<pollfd>& polled, int64_t wake_at) {
    timespec time{};
    if (wake_at != never) {
      const int64_t left = std::max<int64_t>(wake_at - now_ns(), 0);
      time = {time_t(left / 1000000000), long(left % 1000000000)};
    }
    ppoll(polled.data(), polled.size(), wake_at == never ? nullptr : &time, nullptr);
  }

  // After a call that moved `bytes` bytes, or failed.
  static Waits after(ssize_t bytes, Waits on_full) {
    if (bytes > 0 || (bytes < 0 && errno == EINTR)) {
      return Waits::nothing;
    }
    return bytes < 0 && errno == EAGAIN ? on_full : Waits::for_ever;
  }

  static Waits read_theirs(SocketFlow& flow) {
    const ssize_t got = recv(flow.fd, reinterpret_cast<char*>(&flow.theirs) + flow.theirs_bytes,
                             sizeof flow.theirs - flow.theirs_bytes, 0);
    flow.theirs_bytes += size_t(std::max<ssize_t>(got, 0));
    return after(got, Waits::readable);
  }

  Waits advance_send(SocketFlow& flow, const Report& report) const {
    const Transfer& transfer = flow.now();
    const uint64_t head = sizeof(Envelope);
    if (flow.moved < head + transfer.envelope.bytes) {
      const char* envelope = reinterpret_cast<const char*>(&transfer.envelope);
      const char* data = static_cast<const char*>(transfer.data);
      const uint64_t of_head = std::min(flow.moved, head);
      const uint64_t of_data = flow.moved - of_head;
      iovec parts[2] = {
          {const_cast<char*>(envelope + of_head), head - of_head},
          {const_cast<char*>(data + of_data), transfer.envelope.bytes - of_data},
      };
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      const ssize_t put = sendmsg(flow.fd, &message, MSG_NOSIGNAL);
      flow.moved += uint64_t(std::max<ssize_t>(put, 0));
      return after(put, Waits::writable);
    }
    if (flow.theirs_bytes < sizeof flow.theirs) {
      return read_theirs(flow);
    }
    if (!(flow.theirs == transfer.envelope)) {
      report(disagreement(rank_, transfer, flow.theirs));
    }
    flow.next_message();
    return Waits::nothing;
  }

  Waits advance_receive(SocketFlow& flow, const LinkSpeed& speed, const Report& report) const {
    const Transfer& transfer = flow.now();
    if (flow.theirs_bytes < sizeof flow.theirs) {
      return read_theirs(flow);
    }
    const bool agreed = flow.theirs == transfer.envelope;
    if (!flow.started) {
      flow.started = true;
      flow.arrival_ns = links_[size_t(flow.peer)]->arrival_ns(speed, flow.theirs.bytes);
    }
    if (flow.moved < flow.theirs.bytes) {
      char ignored[4096];
      const uint64_t left = flow.theirs.bytes - flow.moved;
      char* const to = agreed ? static_cast<char*>(transfer.data) + flow.moved : ignored;
      const size_t most = agreed ? left : std::min<uint64_t>(left, sizeof ignored);
      const ssize_t got = recv(flow.fd, to, most, 0);
      flow.moved += uint64_t(std::max<ssize_t>(got, 0));
      return after(got, Waits::readable);
    }
    if (flow.arrival_ns > 0 && now_ns() < flow.arrival_ns) {
      return Waits::arrival;
    }
    if (!agreed) {
      report(disagreement(rank_, transfer, flow.theirs));
    }
    // At most one answer is under way on a socket, so it always fits.
    if (send(flow.fd, &transfer.envelope, sizeof transfer.envelope, MSG_NOSIGNAL) !=
        ssize_t(sizeof transfer.envelope)) {
      return Waits::for_ever;
    }
    flow.next_message();
    return Waits::nothing;
  }

  int rank_;
  std::vector<Link*> links_;
  std::vector<Peer> peers_;
};

}  // namespace

std::unique_ptr<Transport> socket_transport(const std::vector<Member>& members, int rank,
                                            const ncclUniqueId& id, std::vector<Link*> links,
                                            const Listener& listener) {
  return std::make_unique<SocketTransport>(members, rank, contents_of(id).secret, std::move(links),
                                           listener);
}

}  // namespace emulator::nccl
