#include "pipetrain/schedule/validate.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <tuple>

#include "pipetrain/error.h"
#include "schedule/validate_named.h"
#include "schedule/walk.h"

namespace pipetrain::schedule {

namespace {

// Position of each computation in its rank's list, by what it is; -1: not there.
class ComputeValidator {
 public:
  ComputeValidator(const Schedule& schedule, const std::string& source, const EntryName& name)
      : schedule_(schedule),
        source_(source),
        name_(name),
        placement_(schedule.placement),
        work_(size_t(placement_.stages()) * placement_.microbatches()) {
    for (std::vector<int>& positions : position_) {
      positions.assign(work_, -1);
    }
  }

  std::vector<std::string> run() {
    if (int(schedule_.ranks.size()) != placement_.ranks()) {
      throw UsageError(fmt::format("{}: there are lists for {} ranks; --ranks is {}", source_,
                                   schedule_.ranks.size(), placement_.ranks()));
    }
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      const std::vector<Action>& list = schedule_.ranks[rank];
      for (int position = 0; position < int(list.size()); ++position) {
        check_entry(rank, position);
      }
      for (int position = 0; position < int(list.size()); ++position) {
        check_pair(rank, position);
      }
    }
    check_complete();
    check_message_order(Kind::forward);
    check_message_order(Kind::backward);
    const std::vector<Wait> waits = walk(schedule_, [](int, int, int) {});
    if (!waits.empty()) {
      throw UsageError(
          fmt::format("{}: the lists deadlock: {}", source_, describe_deadlock(waits, name_)));
    }
    std::vector<std::string> warnings = schedule_.warnings;
    warn_of_weight_order(warnings);
    return warnings;
  }

 private:
  // B and I are told apart where a weight gradient is looked for, elsewhere either will do.
  enum Class { forward, backward, weight, classes };

  static Class class_of(Kind kind) {
    return kind == Kind::forward ? forward : is_backward(kind) ? backward : weight;
  }

  size_t at(const Action& action) const {
    return size_t(action.stage) * placement_.microbatches() + action.microbatch;
  }

  const Action& entry(int rank, int position) const { return schedule_.ranks[rank][position]; }

  [[noreturn]] void reject(int rank, int position, const std::string& reason) const {
    throw UsageError(fmt::format("{}: {}: {}", source_, name_(rank, position), reason));
  }

  void check_entry(int rank, int position) {
    const Action& action = entry(rank, position);
    if (!is_compute(action.kind)) {
      reject(rank, position, "only F, B, I and W may stand in a compute-only list");
    }
    if (action.stage < 0 || action.stage >= placement_.stages()) {
      reject(rank, position, fmt::format("the stage must be less than {}", placement_.stages()));
    }
    if (action.microbatch < 0 || action.microbatch >= placement_.microbatches()) {
      reject(rank, position,
             fmt::format("the micro-batch must be less than --microbatches {}",
                         placement_.microbatches()));
    }
    const int owner = placement_.owner(action.stage, action.microbatch);
    if (owner != rank) {
      reject(rank, position, fmt::format("it belongs to rank {}", owner));
    }
    if (schedule_.forward_only && action.kind != Kind::forward) {
      reject(rank, position, "the schedule is forward only");
    }
    int& first = position_[class_of(action.kind)][at(action)];
    if (first >= 0) {
      reject(rank, position,
             fmt::format("it stands at position {} already{}", first,
                         entry(rank, first).kind == action.kind
                             ? ""
                             : fmt::format(", as {}", to_string(entry(rank, first)))));
    }
    first = position;
    check_order(rank, position);
  }

  // What is needed from the same (stage, micro-batch) stands earlier in the same list.
  void check_order(int rank, int position) const {
    const Action& action = entry(rank, position);
    if (is_backward(action.kind) && position_[forward][at(action)] < 0) {
      reject(rank, position,
             fmt::format("{} does not stand before it",
                         to_string({Kind::forward, action.stage, action.microbatch})));
    }
    if (action.kind != Kind::backward_weight) {
      return;
    }
    const int input = position_[backward][at(action)];
    if (input < 0 || entry(rank, input).kind != Kind::backward_input) {
      reject(rank, position,
             fmt::format("W without I: {} does not stand before it",
                         to_string({Kind::backward_input, action.stage, action.microbatch})));
    }
  }

  void check_pair(int rank, int position) const {
    const std::vector<Action>& list = schedule_.ranks[rank];
    const Action& action = list[position];
    if (!action.overlaps_next) {
      return;
    }
    if (position + 1 == int(list.size()) || list[position + 1].overlaps_next) {
      reject(rank, position, "an overlapped pair has exactly two entries");
    }
    const Kind other = list[position + 1].kind;
    const bool mixed = (action.kind == Kind::forward && is_backward(other)) ||
                       (is_backward(action.kind) && other == Kind::forward);
    if (!mixed) {
      reject(rank, position,
             fmt::format("an overlapped pair is one forward and one backward, the next entry is {}",
                         to_string(list[position + 1])));
    }
  }

  void check_complete() const {
    for (int stage = 0; stage < placement_.stages(); ++stage) {
      for (int i = 0; i < placement_.microbatches(); ++i) {
        const int rank = placement_.owner(stage, i);
        const size_t work = at({Kind::forward, stage, i});
        require(rank, Kind::forward, stage, i, position_[forward][work]);
        if (schedule_.forward_only) {
          continue;
        }
        const int back = position_[backward][work];
        require(rank, Kind::backward, stage, i, back);
        if (entry(rank, back).kind == Kind::backward_input) {
          require(rank, Kind::backward_weight, stage, i, position_[weight][work]);
        }
      }
    }
  }

  void require(int rank, Kind kind, int stage, int microbatch, int position) const {
    if (position < 0) {
      throw UsageError(fmt::format("{}: rank {}: {} is missing in its {} entries", source_, rank,
                                   to_string({kind, stage, microbatch}),
                                   schedule_.ranks[rank].size()));
    }
  }

  // A directed edge is first in, first out: what a rank produces for another one is consumed there
  // in the same order.
  void check_message_order(Kind kind) const {
    const bool forwards = kind == Kind::forward;
    std::map<std::tuple<int, int>, int> last;  // edge -> position of its last producer
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      last.clear();
      const std::vector<Action>& list = schedule_.ranks[rank];
      for (int position = 0; position < int(list.size()); ++position) {
        const Action& action = list[position];
        const int from = forwards ? action.stage - 1 : action.stage + 1;
        if (!(forwards ? action.kind == kind : is_backward(action.kind)) || from < 0 ||
            from >= placement_.stages()) {
          continue;
        }
        const int source = placement_.owner(from, action.microbatch);
        const int produced =
            position_[forwards ? forward : backward][at({kind, from, action.microbatch})];
        if (source == rank) {
          continue;
        }
        const auto [before, first] = last.try_emplace({source, rank}, produced);
        if (!first && before->second > produced) {
          reject(rank, position,
                 fmt::format("its input is overtaken: what {} makes comes after what {} makes, but "
                             "is used earlier here; messages of one direction between two ranks "
                             "keep their order",
                             name_(source, before->second), name_(source, produced)));
        }
        before->second = produced;
      }
    }
  }

  void warn_of_weight_order(std::vector<std::string>& warnings) const {
    std::map<int, int> last;
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      last.clear();
      const std::vector<Action>& list = schedule_.ranks[rank];
      for (int position = 0; position < int(list.size()); ++position) {
        const Action& action = list[position];
        if (action.kind != Kind::backward && action.kind != Kind::backward_weight) {
          continue;
        }
        const auto [before, first] = last.try_emplace(action.stage, action.microbatch);
        if (!first && before->second > action.microbatch) {
          warnings.push_back(fmt::format(
              "{}: rank {}, position {}: {} comes after micro-batch {}: weight gradients "
              "of a stage that do not ascend in micro-batch give other bits than the "
              "other schedules",
              source_, rank, position, to_string(action), before->second));
          return;
        }
        before->second = action.microbatch;
      }
    }
  }

  const Schedule& schedule_;
  const std::string& source_;
  const EntryName& name_;
  const Placement& placement_;
  size_t work_;
  std::array<std::vector<int>, classes> position_;
};

}  // namespace

std::vector<std::string> validate_named(const Schedule& schedule, const std::string& source,
                                        const EntryName& name) {
  return ComputeValidator(schedule, source, name).run();
}

std::vector<std::string> validate(const Schedule& schedule) {
  return validate_named(schedule, schedule.name, [&](int rank, int position) {
    return fmt::format("rank {}, position {}: {}", rank, position,
                       to_string(schedule.ranks[size_t(rank)][size_t(position)]));
  });
}

}  // namespace pipetrain::schedule
