#include "schedule/csv_communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "pipetrain/error.h"
#include "schedule/walk.h"

namespace pipetrain::schedule {
namespace {

using Rows = std::vector<std::vector<CsvCell>>;

bool is_transfer(CsvLetters letters) {
  return letters >= CsvLetters::SEND_F && letters <= CsvLetters::RECV_B;
}

bool is_send(CsvLetters letters) {
  return letters == CsvLetters::SEND_F || letters == CsvLetters::SEND_B;
}

bool is_forward(const CsvCell& cell) {
  return is_compute(cell.letters)
             ? cell.kind == Kind::forward
             : cell.letters == CsvLetters::SEND_F || cell.letters == CsvLetters::RECV_F;
}

// ---- SEND and RECV

// A message: its direction, the stage that uses it, and its micro-batch.
using Key = std::tuple<bool, int, int>;

struct Transfer {
  const CsvCell* producer = nullptr;
  const CsvCell* send = nullptr;
  const CsvCell* receive = nullptr;
  const CsvCell* consumer = nullptr;
};

class TransferCheck {
 public:
  TransferCheck(const Rows& rows, const Placement& placement, const std::string& source)
      : rows_(rows), placement_(placement), source_(source) {}

  void run() {
    collect();
    for (const auto& [key, transfer] : transfers_) {
      check_ends(key, transfer);
    }
    check_message_order();
    check_rendezvous();
  }

 private:
  [[noreturn]] void fail(const CsvCell& cell, const std::string& problem) const {
    fail_at_cell(source_, cell, problem);
  }

  static int rank_of(const CsvCell& cell) { return cell.line - 1; }

  bool exists(int stage) const { return stage >= 0 && stage < placement_.stages(); }

  int owner(int stage, int microbatch) const { return placement_.owner(stage, microbatch); }

  // Whether a computation of `from` sends to one of `to`.
  bool crosses(int from, int to, int microbatch) const {
    return exists(from) && exists(to) && owner(from, microbatch) != owner(to, microbatch);
  }

  static std::string name(const Key& key, const char* what, int stage) {
    return fmt::format("{}{}_{}{}", stage, what, std::get<0>(key) ? 'F' : 'B', std::get<2>(key));
  }

  static int sender(const Key& key) { return std::get<1>(key) - (std::get<0>(key) ? 1 : -1); }

  static Key key_of_send(const CsvCell& cell) {
    return {is_forward(cell), cell.stage + (is_forward(cell) ? 1 : -1), cell.microbatch};
  }
  static Key key_of_receive(const CsvCell& cell) {
    return {is_forward(cell), cell.stage, cell.microbatch};
  }

  void collect() {
    for (const std::vector<CsvCell>& row : rows_) {
      for (const CsvCell& cell : row) {
        if (is_transfer(cell.letters)) {
          check_place(cell);
          const bool send = is_send(cell.letters);
          Transfer& transfer = transfers_[send ? key_of_send(cell) : key_of_receive(cell)];
          const CsvCell*& end = send ? transfer.send : transfer.receive;
          if (end != nullptr) {
            fail(cell, "duplicate of " + place_of(*end));
          }
          end = &cell;
        } else if (is_compute(cell.letters) && cell.kind != Kind::backward_weight) {
          const int step = is_forward(cell) ? 1 : -1;
          if (crosses(cell.stage, cell.stage + step, cell.microbatch)) {
            transfers_[key_of_send(cell)].producer = &cell;
          }
          if (crosses(cell.stage - step, cell.stage, cell.microbatch)) {
            transfers_[key_of_receive(cell)].consumer = &cell;
          }
        }
      }
    }
  }

  // The cell stands on the rank of its stage, and there is another one to exchange with.
  void check_place(const CsvCell& cell) const {
    if (!exists(cell.stage)) {
      fail(cell, fmt::format("the computations name {} stages only", placement_.stages()));
    }
    if (cell.microbatch >= placement_.microbatches()) {
      fail(cell,
           fmt::format("the computations name {} micro-batches only", placement_.microbatches()));
    }
    const int rank = owner(cell.stage, cell.microbatch);
    if (rank != rank_of(cell)) {
      fail(cell, fmt::format("it belongs to rank {} (line {})", rank, rank + 1));
    }
    const bool send = is_send(cell.letters);
    const int peer = cell.stage + (is_forward(cell) == send ? 1 : -1);
    if (!exists(peer)) {
      fail(cell, fmt::format("stage {} is the {}; there is nothing to {}", cell.stage,
                             peer < 0 ? "first" : "last", send ? "send to" : "receive from"));
    }
    if (owner(peer, cell.microbatch) == rank) {
      fail(cell, fmt::format("stage {} is on the same rank; nothing is exchanged", peer));
    }
  }

  void check_ends(const Key& key, const Transfer& transfer) const {
    const auto [forward, stage, microbatch] = key;
    if (transfer.producer == nullptr) {
      fail(transfer.send != nullptr ? *transfer.send : *transfer.receive,
           "the file has no backward passes");
    }
    const std::string send = name(key, "SEND", sender(key));
    const std::string receive = name(key, "RECV", stage);
    if (transfer.send == nullptr) {
      fail(transfer.receive != nullptr ? *transfer.receive : *transfer.producer,
           fmt::format("there is no {} on line {}", send, transfer.producer->line));
    }
    if (transfer.receive == nullptr) {
      fail(*transfer.send,
           fmt::format("there is no {} on line {}", receive, transfer.consumer->line));
    }
    if (transfer.send->cell < transfer.producer->cell) {
      fail(*transfer.send,
           fmt::format("it stands before what it sends, {}", place_of(*transfer.producer)));
    }
    if (transfer.receive->cell > transfer.consumer->cell) {
      fail(*transfer.receive,
           fmt::format("it stands behind what needs it, {}", place_of(*transfer.consumer)));
    }
  }

  // The n-th receive of an edge and direction belongs to its n-th send.
  void check_message_order() const {
    using Edge = std::tuple<int, int, bool>;
    std::map<Edge, std::vector<const CsvCell*>> sends;
    std::map<Edge, size_t> received;
    const auto edge = [](const Transfer& transfer) {
      return Edge(rank_of(*transfer.send), rank_of(*transfer.receive), is_forward(*transfer.send));
    };
    for_each_transfer([&](const CsvCell& cell) {
      if (is_send(cell.letters)) {
        sends[edge(transfer_of(cell))].push_back(&cell);
      }
    });
    for_each_transfer([&](const CsvCell& cell) {
      if (is_send(cell.letters)) {
        return;
      }
      const Transfer& transfer = transfer_of(cell);
      const CsvCell* next = sends[edge(transfer)][received[edge(transfer)]++];
      if (next != transfer.send) {
        fail(cell, fmt::format("{} is sent before {}; messages of one direction between two ranks "
                               "keep their order",
                               place_of(*next), place_of(*transfer.send)));
      }
    });
  }

  template <typename Visit>
  void for_each_transfer(Visit visit) const {
    for (const std::vector<CsvCell>& row : rows_) {
      for (const CsvCell& cell : row) {
        if (is_transfer(cell.letters)) {
          visit(cell);
        }
      }
    }
  }

  const Transfer& transfer_of(const CsvCell& cell) const {
    return transfers_.at(is_send(cell.letters) ? key_of_send(cell) : key_of_receive(cell));
  }

  const CsvCell& partner(const CsvCell& cell) const {
    const Transfer& transfer = transfer_of(cell);
    return is_send(cell.letters) ? *transfer.receive : *transfer.send;
  }

  // Every rank goes on until it stands at a transfer whose other end its peer has not reached.
  void check_rendezvous() const {
    std::vector<size_t> next(rows_.size(), 0);
    const auto at_transfer = [&](size_t rank) {
      while (next[rank] < rows_[rank].size() && !is_transfer(rows_[rank][next[rank]].letters)) {
        ++next[rank];
      }
      return next[rank] < rows_[rank].size();
    };
    std::vector<size_t> stack;
    for (size_t rank = rows_.size(); rank-- > 0;) {
      stack.push_back(rank);
    }
    while (!stack.empty()) {
      const size_t rank = stack.back();
      stack.pop_back();
      while (at_transfer(rank)) {
        const CsvCell& other = partner(rows_[rank][next[rank]]);
        const auto peer = size_t(rank_of(other));
        if (!at_transfer(peer) || &rows_[peer][next[peer]] != &other) {
          break;
        }
        ++next[rank];
        ++next[peer];
        stack.push_back(peer);
      }
    }
    std::vector<Wait> waits;
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      if (at_transfer(rank)) {
        const CsvCell& other = partner(rows_[rank][next[rank]]);
        waits.push_back({int(rank), int(next[rank]), {}, rank_of(other), action_of(other)});
      }
    }
    if (!waits.empty()) {
      const auto place = [&](int rank, int position) {
        return place_of(rows_[size_t(rank)][size_t(position)]);
      };
      throw UsageError(fmt::format("{}: the lists deadlock with rendezvous sends: {}", source_,
                                   describe_deadlock(waits, place)));
    }
  }

  static Action action_of(const CsvCell& cell) {
    const bool send = is_send(cell.letters);
    const Kind kind = is_forward(cell) ? (send ? Kind::send_forward : Kind::receive_forward)
                                       : (send ? Kind::send_backward : Kind::receive_backward);
    return {kind, cell.stage, cell.microbatch};
  }

  const Rows& rows_;
  const Placement& placement_;
  const std::string& source_;
  std::map<Key, Transfer> transfers_;
};

// ---- REDUCE_GRAD and OPTIMIZER_STEP

bool gives_weights(const CsvCell& cell) {
  return is_compute(cell.letters) &&
         (cell.kind == Kind::backward || cell.kind == Kind::backward_weight);
}

// How the updates of one rank stand.
struct RankUpdates {
  bool reduces = false;
  int steps = 0;
  int gradients = 0;
};

RankUpdates check_row(const std::vector<CsvCell>& row, const Schedule& schedule,
                      const std::string& source) {
  const int rank = row.front().line - 1;
  RankUpdates result;
  result.reduces = std::any_of(row.begin(), row.end(), [](const CsvCell& cell) {
    return cell.letters == CsvLetters::REDUCE_GRAD;
  });
  std::map<int, const CsvCell*> unreduced;  // stage -> its last gradient since the last reduction
  std::map<int, const CsvCell*> reduced;    // stage -> its reduction since the last step
  const CsvCell* unapplied = nullptr;       // the last gradient since the last step
  const auto require_reduced = [&] {
    if (result.reduces && !unreduced.empty()) {
      const CsvCell& last = *unreduced.begin()->second;
      fail_at_cell(
          source, last,
          fmt::format("no {}REDUCE_GRAD stands behind it before the weights change", last.stage));
    }
  };
  for (const CsvCell& cell : row) {
    const auto fail = [&](const std::string& problem) { fail_at_cell(source, cell, problem); };
    if (cell.letters >= CsvLetters::REDUCE_GRAD && cell.letters != CsvLetters::OPTIMIZER_STEP &&
        (cell.stage >= schedule.placement.stages() ||
         !schedule.placement.holds(rank, cell.stage))) {
      fail(fmt::format("rank {} does not hold stage {}", rank, cell.stage));
    }
    if (gives_weights(cell)) {
      unreduced[cell.stage] = unapplied = &cell;
      ++result.gradients;
    } else if (cell.letters == CsvLetters::REDUCE_GRAD) {
      if (unreduced.erase(cell.stage) == 0) {
        fail(fmt::format("no gradient of stage {} stands before it that is not reduced",
                         cell.stage));
      }
      const auto [before, first] = reduced.try_emplace(cell.stage, &cell);
      if (!first) {
        fail(fmt::format("stage {} is reduced at {} already; once, behind its last gradient",
                         cell.stage, place_of(*before->second)));
      }
    } else if (cell.letters == CsvLetters::OPTIMIZER_STEP) {
      ++result.steps;
      if (unapplied == nullptr) {
        fail("no gradient stands before it that is not applied");
      }
      require_reduced();
      reduced.clear();
      unapplied = nullptr;
    }
  }
  require_reduced();
  if (result.steps > 0 && unapplied != nullptr) {
    fail_at_cell(source, *unapplied, "there is no OPTIMIZER_STEP behind it");
  }
  if (result.steps > 1 && result.steps < result.gradients) {
    throw UsageError(fmt::format(
        "{}: line {}: {} cells are OPTIMIZER_STEP; it stands once at the end, or behind each of "
        "the {} weight gradients",
        source, rank + 1, result.steps, result.gradients));
  }
  return result;
}

}  // namespace

void check_transfers(const Rows& rows, const Placement& placement, const std::string& source) {
  const bool any = std::any_of(rows.begin(), rows.end(), [](const std::vector<CsvCell>& row) {
    return std::any_of(row.begin(), row.end(),
                       [](const CsvCell& cell) { return is_transfer(cell.letters); });
  });
  if (any) {
    TransferCheck(rows, placement, source).run();
  }
}

Update check_updates(const Rows& rows, const Schedule& schedule, const std::string& source) {
  std::vector<RankUpdates> ranks;
  for (const std::vector<CsvCell>& row : rows) {
    ranks.push_back(check_row(row, schedule, source));
  }
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const auto differs = [&](const char* what) {
      throw UsageError(fmt::format(
          "{}: line {}: {} stands here otherwise than on line 1; all ranks update their "
          "weights alike",
          source, rank + 1, what));
    };
    if (ranks[rank].reduces != ranks[0].reduces) {
      differs("REDUCE_GRAD");
    }
    const bool one = ranks[rank].steps == 1;
    if (ranks[rank].steps != ranks[0].steps && (one || ranks[0].steps <= 1)) {
      differs("OPTIMIZER_STEP");
    }
  }
  return ranks[0].steps > 1 ? Update::every_backward : Update::step;
}

}  // namespace pipetrain::schedule
