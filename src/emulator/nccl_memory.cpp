// Messages between threads of one process. A sender puts a message into the channel; the receiver
// takes it out, copies the data to their place and deletes the message. The receiver orders itself
// after the sender, but not the other way round (see nccl_quiet.h).

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "emulator/nccl_transport.h"

namespace emulator::nccl {
namespace {

struct Message {
  Message(const Envelope& head, const void* sent) : envelope(head), data(sent) {
#ifdef __SANITIZE_THREAD__
    // ThreadSanitizer would take the receiver's reading of the sender's memory for a race with what
    // the sender does to it later, after the end of its send.
    if (envelope.bytes > 0) {
      copy.reset(new char[envelope.bytes]);
      std::memcpy(copy.get(), sent, envelope.bytes);
      data = copy.get();
    }
#endif
  }

  Envelope envelope;
  const void* data;
  std::unique_ptr<char[]> copy;
};

// From one rank to another. The word is 0 when empty, a Message* when one waits, or, with the
// lowest bit set, an Envelope* of a receiver that expected another message.
struct alignas(64) Channel {
  Shared<uintptr_t> word;
};

// A rank sleeps on its bell; whoever changes one of its channels rings it.
struct alignas(64) Bell {
  Shared<uint32_t> rings;

  void ring() {
    rings.add_quietly(1);
    wake_all(rings);
  }
};

// What the ranks of a communicator share.
class Hub {
 public:
  explicit Hub(int ranks)
      : bells(size_t(ranks)), ranks_(ranks), channels_(size_t(ranks) * size_t(ranks)) {}

  Channel& channel(int from, int to) {
    return channels_[size_t(from) * size_t(ranks_) + size_t(to)];
  }

  void post(int from, int to, const Note& note) {
    const std::lock_guard lock(mutex_);
    notes_[{from, to}].push_back(note);
    posted_.notify_all();
  }

  Note await(int from, int to, Note::Kind kind) {
    std::unique_lock lock(mutex_);
    std::deque<Note>& notes = notes_[{from, to}];
    for (;;) {
      for (auto note = notes.begin(); note != notes.end(); ++note) {
        if (note->kind == kind) {
          const Note found = *note;
          notes.erase(note);
          return found;
        }
      }
      posted_.wait(lock);
    }
  }

  std::vector<Bell> bells;

 private:
  int ranks_;
  std::vector<Channel> channels_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<std::pair<int, int>, std::deque<Note>> notes_;
};

// The ranks of one communicator meet here by its id; the last to come takes the entry away.
std::shared_ptr<Hub> meet(const ncclUniqueId& id, int ranks) {
  struct Entry {
    std::shared_ptr<Hub> hub;
    int came = 0;
  };
  static std::mutex mutex;
  static std::map<std::string, Entry> entries;
  const std::string key(id.internal, sizeof id.internal);
  const std::lock_guard lock(mutex);
  Entry& entry = entries[key];
  if (entry.hub == nullptr) {
    entry.hub = std::make_shared<Hub>(ranks);
  }
  std::shared_ptr<Hub> hub = entry.hub;
  if (++entry.came == ranks) {
    entries.erase(key);
  }
  return hub;
}

class MemoryTransport : public Transport {
 public:
  MemoryTransport(std::shared_ptr<Hub> hub, int rank, std::vector<Link*> links)
      : hub_(std::move(hub)), rank_(rank), links_(std::move(links)) {}

  void post(int peer, const Note& note) override { hub_->post(rank_, peer, note); }
  Note await(int peer, Note::Kind kind) override { return hub_->await(peer, rank_, kind); }

  void exchange(std::span<const Transfer> transfers, const LinkSpeed& speed,
                const Report& report) override {
    std::vector<Flow> flows = flows_of(transfers);
    for (;;) {
      const uint32_t rings = bell(rank_).rings.load_quietly();
      bool all_done = true;
      bool progressed = false;
      int64_t wake_at = never;
      for (Flow& flow : flows) {
        if (!flow.done()) {
          progressed |= flow.sends ? advance_send(flow, report)
                                   : advance_receive(flow, speed, wake_at, report);
          all_done &= flow.done();
        }
      }
      if (all_done) {
        return;
      }
      if (!progressed) {
        sleep_while(bell(rank_).rings, rings, wake_at);
      }
    }
  }

 private:
  Bell& bell(int rank) { return hub_->bells[size_t(rank)]; }

  bool advance_send(Flow& flow, const Report& report) {
    Shared<uintptr_t>& word = hub_->channel(rank_, flow.peer).word;
    const Transfer& transfer = flow.now();
    if (!flow.started) {
      const auto* message = new Message(transfer.envelope, transfer.data);
      flow.started = true;
      word.store_release(reinterpret_cast<uintptr_t>(message));
      bell(flow.peer).ring();
      return true;
    }
    const uintptr_t state = word.load_quietly();
    if ((state & 1) != 0) {
      const std::unique_ptr<Envelope> expected(
          reinterpret_cast<Envelope*>(word.load_acquire() - 1));
      report(disagreement(rank_, transfer, *expected));
      word.store_quietly(0);
    } else if (state != 0) {
      return false;  // not taken yet
    }
    flow.finish();
    return true;
  }

  bool advance_receive(Flow& flow, const LinkSpeed& speed, int64_t& wake_at, const Report& report) {
    Shared<uintptr_t>& word = hub_->channel(flow.peer, rank_).word;
    const uintptr_t state = word.load_acquire();
    if (state == 0 || (state & 1) != 0) {
      return false;
    }
    auto* message = reinterpret_cast<Message*>(state);
    if (!flow.started) {
      flow.started = true;
      flow.arrival_ns = links_[size_t(flow.peer)]->arrival_ns(speed, message->envelope.bytes);
    }
    if (flow.arrival_ns > 0 && now_ns() < flow.arrival_ns) {
      wake_at = std::min(wake_at, flow.arrival_ns);
      return false;
    }
    const std::unique_ptr<Message> taken(message);
    const Transfer& transfer = flow.now();
    if (taken->envelope == transfer.envelope) {
      if (transfer.envelope.bytes > 0) {
        std::memcpy(transfer.data, taken->data, transfer.envelope.bytes);
      }
      word.store_quietly(0);
    } else {
      report(disagreement(rank_, transfer, taken->envelope));
      word.store_release(reinterpret_cast<uintptr_t>(new Envelope(transfer.envelope)) + 1);
    }
    bell(flow.peer).ring();
    flow.finish();
    return true;
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  std::vector<Link*> links_;
};

}  // namespace

std::unique_ptr<Transport> memory_transport(const std::vector<Member>& members, int rank,
                                            const ncclUniqueId& id, std::vector<Link*> links) {
  return std::make_unique<MemoryTransport>(meet(id, int(members.size())), rank, std::move(links));
}

}  // namespace emulator::nccl
