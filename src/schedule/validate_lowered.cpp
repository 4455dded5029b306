#include <fmt/format.h>

#include <map>

#include "pipetrain/error.h"
#include "pipetrain/schedule/validate.h"
#include "schedule/walk.h"

namespace pipetrain::schedule {

namespace {

// What a buffer holds: a (stage, micro-batch) pair, or nothing.
struct Content {
  int stage = -1;
  int microbatch = -1;
  bool operator==(const Content&) const = default;
};

constexpr Content nothing;

// Runs the lists strictly one entry at a time, each rank blocking at each send until its peer
// stands at the receive: what finishes here finishes with any amount of overlap.
class LoweredValidator {
 public:
  explicit LoweredValidator(const LoweredSchedule& schedule)
      : schedule_(schedule),
        next_(schedule.ranks.size(), 0),
        activations_(schedule.ranks.size()),
        gradients_(schedule.ranks.size()) {}

  std::vector<std::string> run() {
    const Schedule computations = compute_only();
    std::vector<std::string> warnings = validate(computations);
    require_sizes();
    for (const Channel& channel : schedule_.channels) {
      outgoing_.emplace_back(channel.outgoing_slots);
      incoming_.emplace_back(channel.incoming_slots);
    }
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      activations_[rank].resize(schedule_.activation_slots[rank]);
      gradients_[rank].resize(schedule_.gradient_slots[rank]);
    }
    run_all();
    check_order();
    for (int rank = 0; rank < int(next_.size()); ++rank) {
      check_weights(rank);
    }
    return warnings;
  }

 private:
  const LoweredAction& entry(int rank, int position) const {
    return schedule_.ranks[rank][position];
  }

  [[noreturn]] void reject(int rank, int position, const std::string& reason) const {
    throw UsageError(fmt::format("{}: rank {}, position {}: {}: {}", schedule_.name, rank, position,
                                 to_string(entry(rank, position).action), reason));
  }

  Schedule compute_only() const {
    Schedule result{schedule_.name, schedule_.placement, {}};
    result.update = schedule_.update;
    result.forward_only = schedule_.forward_only;
    for (const std::vector<LoweredAction>& list : schedule_.ranks) {
      std::vector<Action>& actions = result.ranks.emplace_back();
      for (const LoweredAction& lowered : list) {
        if (is_compute(lowered.action.kind)) {
          actions.push_back(lowered.action);
        }
      }
    }
    return result;
  }

  void require_sizes() const {
    const auto require = [&](size_t values, size_t needed, const char* of) {
      if (values != needed) {
        throw UsageError(fmt::format("{}: {} values for {} {}; there must be one for each",
                                     schedule_.name, values, needed, of));
      }
    };
    for (const std::vector<int>* sizes :
         {&schedule_.activation_slots, &schedule_.gradient_slots, &schedule_.weight_versions}) {
      require(sizes->size(), schedule_.ranks.size(), "ranks");
    }
    require(schedule_.keeps_gradients.size(), size_t(schedule_.placement.stages()), "stages");
  }

  // Advances every rank as far as it goes; a transfer needs both ends.
  void run_all() {
    std::vector<int> stack;
    for (int rank = int(next_.size()) - 1; rank >= 0; --rank) {
      stack.push_back(rank);
    }
    while (!stack.empty()) {
      const int rank = stack.back();
      stack.pop_back();
      while (next_[rank] < int(schedule_.ranks[rank].size())) {
        const Action& action = entry(rank, next_[rank]).action;
        if (is_send(action.kind) || is_receive(action.kind)) {
          const int peer = peer_of(rank, next_[rank]);
          if (!meets(rank, peer)) {
            break;
          }
          is_send(action.kind) ? transfer(rank, peer) : transfer(peer, rank);
          stack.push_back(peer);
        } else {
          compute(rank);
        }
      }
    }
    for (int rank = 0; rank < int(next_.size()); ++rank) {
      if (next_[rank] < int(schedule_.ranks[rank].size())) {
        report_deadlock();
      }
    }
  }

  const Channel& channel_of(int rank, int position, const SlotRef& slot, int slots_of_channel,
                            const char* what) const {
    if (slot.channel < 0 || slot.channel >= int(schedule_.channels.size())) {
      reject(rank, position,
             fmt::format("its {} is channel {}, which does not exist", what, slot.channel));
    }
    if (slot.slot < 0 || slot.slot >= slots_of_channel) {
      reject(rank, position,
             fmt::format("its {} is slot {}; channel {} has {}", what, slot.slot, slot.channel,
                         slots_of_channel));
    }
    return schedule_.channels[slot.channel];
  }

  int peer_of(int rank, int position) const {
    const LoweredAction& lowered = entry(rank, position);
    const bool send = is_send(lowered.action.kind);
    const int id = lowered.message.channel;
    const int slots = id < 0 || id >= int(schedule_.channels.size()) ? 0
                      : send ? schedule_.channels[id].outgoing_slots
                             : schedule_.channels[id].incoming_slots;
    const Channel& channel = channel_of(rank, position, lowered.message, slots, "message");
    if ((send ? channel.source : channel.destination) != rank) {
      reject(rank, position, fmt::format("channel {} belongs to other ranks", id));
    }
    return send ? channel.destination : channel.source;
  }

  // Whether `rank` and its peer stand at the two ends of one transfer.
  bool meets(int rank, int peer) const {
    if (next_[peer] == int(schedule_.ranks[peer].size())) {
      return false;
    }
    const LoweredAction& mine = entry(rank, next_[rank]);
    const LoweredAction& theirs = entry(peer, next_[peer]);
    const bool ends = (is_send(mine.action.kind) && is_receive(theirs.action.kind)) ||
                      (is_receive(mine.action.kind) && is_send(theirs.action.kind));
    return ends && mine.message.channel == theirs.message.channel;
  }

  void transfer(int source, int destination) {
    const int sent = next_[source]++;
    const int received = next_[destination]++;
    const LoweredAction& send = entry(source, sent);
    const LoweredAction& receive = entry(destination, received);
    const bool forward = send.action.kind == Kind::send_forward;
    const Kind expected = forward ? Kind::receive_forward : Kind::receive_backward;
    const int stage = send.action.stage + (forward ? 1 : -1);
    if (receive.action.kind != expected || receive.action.stage != stage ||
        receive.action.microbatch != send.action.microbatch) {
      reject(destination, received,
             fmt::format("FIFO mismatch: rank {}, position {} sends {}", source, sent,
                         to_string(send.action)));
    }
    release(outgoing_[send.message.channel], send.message.slot, content(send.action), source, sent,
            "outgoing");
    acquire(incoming_[receive.message.channel], receive.message.slot, content(receive.action),
            destination, received, "incoming");
    if (receive.gate >= received ||
        (receive.gate >= 0 && !is_compute(entry(destination, receive.gate).action.kind))) {
      reject(
          destination, received,
          fmt::format("its gate is position {}, which is no computation before it", receive.gate));
    }
  }

  // The next computation of `rank`, or both of an overlapped pair: what starts together takes all
  // its buffers before any is given back.
  void compute(int rank) {
    const int first = next_[rank];
    const bool pair = entry(rank, first).action.overlaps_next;
    const int last = first + (pair ? 2 : 1);
    if (last > int(schedule_.ranks[rank].size()) ||
        !is_compute(entry(rank, last - 1).action.kind)) {
      if (pair) {
        reject(rank, first, "the two entries of an overlapped pair must be neighbours");
      }
    }
    next_[rank] = last;
    for (int position = first; position < last; ++position) {
      if (is_compute(entry(rank, position).action.kind)) {
        take(rank, position);
      }
    }
    for (int position = first; position < last; ++position) {
      if (is_compute(entry(rank, position).action.kind)) {
        give(rank, position);
      }
    }
  }

  void take(int rank, int position) {
    const LoweredAction& lowered = entry(rank, position);
    const auto [kind, stage, microbatch, overlaps] = lowered.action;
    const Content work = content(lowered.action);
    if (kind == Kind::forward && !schedule_.forward_only) {
      acquire(activations_[rank], lowered.activation_slot, work, rank, position, "activation");
    }
    if (kind == Kind::backward_input && keeps_gradient(rank, position)) {
      acquire(gradients_[rank], lowered.gradient_slot, work, rank, position, "gradient");
    }
    const int step = kind == Kind::forward ? 1 : -1;
    const int stages = schedule_.placement.stages();
    const bool input = kind != Kind::backward_weight && stage - step >= 0 && stage - step < stages;
    const bool output = kind != Kind::backward_weight && stage + step >= 0 && stage + step < stages;
    check_use(rank, position, lowered.input, input, "input");
    check_use(rank, position, lowered.output, output, "output");
    if (input) {
      const bool inside = schedule_.channels[lowered.input.channel].incoming_slots == 0;
      // A hand-off inside the rank still carries its producer's name.
      const Content expected = inside ? Content{stage - step, microbatch} : work;
      release((inside ? outgoing_ : incoming_)[lowered.input.channel], lowered.input.slot, expected,
              rank, position, "input");
    }
    if (output) {
      acquire(outgoing_[lowered.output.channel], lowered.output.slot, work, rank, position,
              "output");
    }
  }

  bool keeps_gradient(int rank, int position) const {
    const LoweredAction& lowered = entry(rank, position);
    if (schedule_.keeps_gradients[size_t(lowered.action.stage)]) {
      return true;
    }
    if (lowered.gradient_slot >= 0) {
      reject(rank, position,
             fmt::format("its stage keeps no gradients, but it uses gradient slot {}",
                         lowered.gradient_slot));
    }
    return false;
  }

  void check_use(int rank, int position, const SlotRef& slot, bool needed, const char* what) const {
    if (needed && (slot.channel < 0 || slot.channel >= int(schedule_.channels.size()))) {
      reject(rank, position, fmt::format("its {} has no channel", what));
    }
    if (!needed && slot.channel >= 0) {
      reject(rank, position, fmt::format("it has no {}, but uses channel {}", what, slot.channel));
    }
  }

  void give(int rank, int position) {
    const LoweredAction& lowered = entry(rank, position);
    const Kind kind = lowered.action.kind;
    const Content work = content(lowered.action);
    if (kind == Kind::backward || kind == Kind::backward_weight) {
      release(activations_[rank], lowered.activation_slot, work, rank, position, "activation");
    }
    if (kind == Kind::backward_weight && keeps_gradient(rank, position)) {
      release(gradients_[rank], lowered.gradient_slot, work, rank, position, "gradient");
    }
  }

  static Content content(const Action& action) { return {action.stage, action.microbatch}; }

  void acquire(std::vector<Content>& pool, int slot, Content work, int rank, int position,
               const char* what) const {
    require_slot(pool, slot, rank, position, what);
    if (pool[slot] != nothing) {
      reject(rank, position,
             fmt::format("{} slot {} is used twice: it still holds stage {}, micro-batch {}", what,
                         slot, pool[slot].stage, pool[slot].microbatch));
    }
    pool[slot] = work;
  }

  void release(std::vector<Content>& pool, int slot, Content work, int rank, int position,
               const char* what) const {
    require_slot(pool, slot, rank, position, what);
    if (pool[slot] != work) {
      reject(rank, position,
             pool[slot] == nothing ? fmt::format("{} slot {} is empty", what, slot)
                                   : fmt::format("{} slot {} holds stage {}, micro-batch {}", what,
                                                 slot, pool[slot].stage, pool[slot].microbatch));
    }
    pool[slot] = nothing;
  }

  void require_slot(const std::vector<Content>& pool, int slot, int rank, int position,
                    const char* what) const {
    if (slot < 0 || slot >= int(pool.size())) {
      reject(rank, position,
             fmt::format("{} slot {} does not exist; there are {}", what, slot, pool.size()));
    }
  }

  // The global order holds every entry once, each rank's in list order, a receive behind its send.
  void check_order() const {
    std::vector<int> seen(schedule_.ranks.size(), 0);
    const auto& order = schedule_.order;
    for (size_t i = 0; i < order.size(); ++i) {
      const auto [rank, index] = order[i];
      if (rank < 0 || rank >= int(seen.size()) || index != seen[rank] ||
          index >= int(schedule_.ranks[rank].size())) {
        throw UsageError(
            fmt::format("{}: entry {} of the global order is rank {}, position {}, "
                        "which is not the rank's next",
                        schedule_.name, i, rank, index));
      }
      ++seen[rank];
      const LoweredAction& lowered = entry(rank, index);
      const bool after_send =
          i > 0 && is_send(entry(order[i - 1].rank, order[i - 1].index).action.kind);
      if (is_receive(lowered.action.kind) != after_send) {
        reject(rank, index, "in the global order a receive stands right behind its send");
      }
    }
    for (int rank = 0; rank < int(seen.size()); ++rank) {
      if (seen[rank] != int(schedule_.ranks[rank].size())) {
        reject(rank, seen[rank], "it is missing in the global order");
      }
    }
  }

  // Every forward uses the version that the schedule says, its backward the same one.
  void check_weights(int rank) const {
    int updates = 0;
    std::vector<int> held(size_t(schedule_.weight_versions[rank]), 0);  // [slot]: version
    std::map<std::pair<int, int>, int> used;                            // stage, micro-batch
    for (int position = 0; position < int(schedule_.ranks[rank].size()); ++position) {
      const auto [kind, stage, microbatch, overlaps] = entry(rank, position).action;
      if (!is_compute(kind) && kind != Kind::optimizer_step) {
        continue;
      }
      const int slot = entry(rank, position).weights;
      if (slot < 0 || slot >= int(held.size())) {
        reject(rank, position,
               fmt::format("weights slot {} does not exist; there are {}", slot, held.size()));
      }
      const bool previous = schedule_.update == Update::delayed;
      if (kind == Kind::optimizer_step) {
        held[size_t(slot)] = updates;
        held.front() = ++updates;
      } else if (kind == Kind::forward) {
        used[{stage, microbatch}] = held[size_t(slot)];
        if (held[size_t(slot)] != updates || (slot == 0) == previous) {
          reject(rank, position, fmt::format("weights slot {} is not of the version to use", slot));
        }
      } else if (const int version = used.at({stage, microbatch});
                 held[size_t(slot)] != version || (slot == 0 && previous)) {
        reject(rank, position,
               fmt::format("weights slot {} holds version {}; its forward used {}", slot,
                           held[size_t(slot)], version));
      }
    }
  }

  [[noreturn]] void report_deadlock() const {
    std::vector<Wait> waits;
    for (int rank = 0; rank < int(next_.size()); ++rank) {
      const int position = next_[rank];
      if (position == int(schedule_.ranks[rank].size())) {
        continue;
      }
      const Action& action = entry(rank, position).action;
      const bool forward =
          action.kind == Kind::send_forward || action.kind == Kind::receive_forward;
      const bool send = is_send(action.kind);
      const Kind other = send ? (forward ? Kind::receive_forward : Kind::receive_backward)
                              : (forward ? Kind::send_forward : Kind::send_backward);
      const int stage = action.stage + (send == forward ? 1 : -1);
      waits.push_back(
          {rank, position, action, peer_of(rank, position), {other, stage, action.microbatch}});
    }
    throw UsageError(fmt::format("{}: the lists deadlock with rendezvous sends: {}", schedule_.name,
                                 describe_deadlock(waits)));
  }

  const LoweredSchedule& schedule_;
  std::vector<int> next_;
  std::vector<std::vector<Content>> outgoing_;  // [channel][slot]
  std::vector<std::vector<Content>> incoming_;
  std::vector<std::vector<Content>> activations_;  // [rank][slot]
  std::vector<std::vector<Content>> gradients_;
};

}  // namespace

std::vector<std::string> validate(const LoweredSchedule& schedule) {
  return LoweredValidator(schedule).run();
}

}  // namespace pipetrain::schedule
