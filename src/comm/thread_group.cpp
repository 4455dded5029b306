#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "pipetrain/comm/control.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

using Message = std::vector<std::byte>;
using Heard = std::function<void()>;

// What the threads share: queues of messages.
class Mailboxes {
 public:
  explicit Mailboxes(int ranks) : ranks_(ranks) {}

  int ranks() const { return ranks_; }

  void send(int source, int destination, std::span<const std::byte> data) {
    const std::lock_guard lock(mutex_);
    queues_[{source, destination}].emplace_back(data.begin(), data.end());
    changed_.notify_all();
  }

  Message receive(int source, int destination, const Heard& heard) {
    std::unique_lock lock(mutex_);
    std::deque<Message>& queue = queues_[{source, destination}];
    wait(
        lock, [&] { return !queue.empty(); }, heard);
    Message message = std::move(queue.front());
    queue.pop_front();
    return message;
  }

  void tell_progress() {
    const std::lock_guard lock(mutex_);
    ++told_;
    changed_.notify_all();
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition, const Heard& heard) {
    for (size_t known = told_; !aborted_ && !condition();) {
      changed_.wait(lock);
      if (std::exchange(known, told_) != told_) {
        heard();
      }
    }
    if (!condition()) {
      throw PeerLost("another rank of this group of threads has failed");
    }
  }

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Message>> queues_;
  size_t told_ = 0;
  bool aborted_ = false;
};

class ThreadControl final : public Control {
 public:
  ThreadControl(Mailboxes& mailboxes, int rank) : mailboxes_(mailboxes), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return mailboxes_.ranks(); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }

  void broadcast(std::vector<std::byte>& data, int root) override {
    if (rank_ != root) {
      data = receive(root);
      return;
    }
    for (int destination = 0; destination < size(); ++destination) {
      if (destination != root) {
        mailboxes_.send(root, destination, data);
      }
    }
  }

  void send(std::span<const std::byte> data, int destination) override {
    mailboxes_.send(rank_, destination, data);
  }

  std::vector<std::byte> receive(int source) override {
    const Wait waits(*this, source);
    return mailboxes_.receive(source, rank_, heard_);
  }

  void tell_progress() override { mailboxes_.tell_progress(); }

 private:
  Mailboxes& mailboxes_;
  int rank_;
  const Heard heard_ = [this] { hear_progress(); };
};

}  // namespace

struct ThreadGroup::State {
  explicit State(int ranks) : mailboxes(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      controls.emplace_back(mailboxes, rank);
    }
  }
  Mailboxes mailboxes;
  std::deque<ThreadControl> controls;
};

ThreadGroup::ThreadGroup(int ranks) : state_(std::make_unique<State>(ranks)) {}
ThreadGroup::~ThreadGroup() = default;
Control& ThreadGroup::control(int rank) {
  return state_->controls.at(size_t(rank));
}
void ThreadGroup::abort() {
  state_->mailboxes.abort();
}

}  // namespace pipetrain
