#include "pipetrain/schedule/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "pipetrain/error.h"
#include "schedule/csv_cells.h"
#include "schedule/csv_communication.h"
#include "schedule/validate_named.h"

namespace pipetrain::schedule {
namespace {

// Gives the cells of a file their meaning: dialect, completeness, placement.
class Interpreter {
 public:
  Interpreter(std::vector<std::vector<CsvCell>> rows, const std::string& source);

  Schedule schedule() const;

 private:
  [[noreturn]] void fail(const CsvCell& cell, const std::string& problem) const {
    fail_at_cell(source_, cell, problem);
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw UsageError(fmt::format("{}: {}", source_, problem));
  }

  void settle_dialect();
  void check_complete() const;
  const CsvCell& witness_of(int stage, int microbatch) const;
  Placement infer_placement() const;

  template <typename Visit>
  void for_each_computation(Visit visit) const {
    for (const std::vector<CsvCell>& row : rows_) {
      for (const CsvCell& cell : row) {
        if (is_compute(cell.letters)) {
          visit(cell);
        }
      }
    }
  }

  std::vector<std::vector<CsvCell>> rows_;
  const std::string& source_;
  int stages_ = 0;
  int microbatches_ = 0;
  bool forward_only_ = true;
};

Interpreter::Interpreter(std::vector<std::vector<CsvCell>> rows, const std::string& source)
    : rows_(std::move(rows)), source_(source) {
  for_each_computation([&](const CsvCell& cell) {
    stages_ = std::max(stages_, cell.stage + 1);
    microbatches_ = std::max(microbatches_, cell.microbatch + 1);
    forward_only_ &= cell.letters == CsvLetters::F;
  });
  settle_dialect();
  check_complete();
}

// Today B is the whole backward. Older files write B for the input gradient where the same (stage,
// micro-batch) also has a W, and BW for the whole.
void Interpreter::settle_dialect() {
  std::map<std::pair<int, int>, bool> has_weight;
  const CsvCell* whole = nullptr;
  for_each_computation([&](const CsvCell& cell) {
    if (cell.letters == CsvLetters::W) {
      has_weight[{cell.stage, cell.microbatch}] = true;
    }
    if (cell.letters == CsvLetters::BW) {
      whole = &cell;
    }
  });
  for (std::vector<CsvCell>& row : rows_) {
    for (CsvCell& cell : row) {
      if (!is_compute(cell.letters)) {
        continue;
      }
      const bool split = has_weight.count({cell.stage, cell.microbatch}) > 0;
      switch (cell.letters) {
        case CsvLetters::F:
          cell.kind = Kind::forward;
          break;
        case CsvLetters::I:
          if (whole != nullptr) {
            fail(cell, fmt::format("I is today's dialect, but line {}, cell {} ({}) is the older "
                                   "one, in which B is the input gradient",
                                   whole->line, whole->cell, whole->text));
          }
          cell.kind = Kind::backward_input;
          break;
        case CsvLetters::B:
          if (whole != nullptr && !split) {
            fail(cell, fmt::format("no {}W{} for it; in the older dialect, which the file's BW "
                                   "cells show, B is the input gradient alone",
                                   cell.stage, cell.microbatch));
          }
          cell.kind = split ? Kind::backward_input : Kind::backward;
          break;
        case CsvLetters::BW:
          cell.kind = Kind::backward;
          break;
        default:  // W
          cell.kind = Kind::backward_weight;
          break;
      }
    }
  }
}

// The cell that shows that this work must be in the file: of the same micro-batch, or of a later
// one, or of the same stage.
const CsvCell& Interpreter::witness_of(int stage, int microbatch) const {
  const CsvCell* witness = nullptr;
  int best = 0;
  for_each_computation([&](const CsvCell& cell) {
    const int rank = cell.microbatch == microbatch ? 3 : cell.microbatch > microbatch ? 2 : 1;
    if (rank > best || (rank == best && cell.stage == stage && witness->stage != stage)) {
      witness = &cell;
      best = rank;
    }
  });
  return *witness;
}

// Every (stage, micro-batch) has one F and, but for a file of forwards, one B or one I and one W.
void Interpreter::check_complete() const {
  static_assert(size_t(Kind::forward) == 0 && size_t(Kind::backward_weight) == 3);
  using Passes = std::array<const CsvCell*, 4>;  // indexed by Kind
  std::map<std::pair<int, int>, Passes> seen;
  for_each_computation([&](const CsvCell& cell) {
    const CsvCell*& before = seen[{cell.stage, cell.microbatch}][size_t(cell.kind)];
    if (before != nullptr) {
      fail(cell, "duplicate of " + place_of(*before));
    }
    before = &cell;
  });
  for (int stage = 0; stage < stages_; ++stage) {
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
      const auto found = seen.find({stage, microbatch});
      if (found == seen.end()) {
        fail(witness_of(stage, microbatch),
             fmt::format("there is no {}F{}, but the cells name {} stages and {} micro-batches",
                         stage, microbatch, stages_, microbatches_));
      }
      const auto [forward, whole, input, weight] = found->second;
      const auto missing = [&](char letter) {
        return fmt::format("there is no {}{}{}", stage, letter, microbatch);
      };
      if (whole != nullptr && (input != nullptr || weight != nullptr)) {
        fail(*whole, fmt::format("stage {}, micro-batch {} also has {}; the whole backward stands "
                                 "alone",
                                 stage, microbatch, input != nullptr ? "I" : "W"));
      }
      if (forward == nullptr) {
        fail(*(whole != nullptr ? whole : input != nullptr ? input : weight), missing('F'));
      }
      if (input != nullptr && weight == nullptr) {
        fail(*input, missing('W'));
      }
      if (weight != nullptr && input == nullptr) {
        fail(*weight, missing('I'));
      }
      if (whole == nullptr && input == nullptr && !forward_only_) {
        fail(*forward, missing('B'));
      }
    }
  }
}

// The placement under which every cell stands on its owner's line.
Placement Interpreter::infer_placement() const {
  const int ranks = int(rows_.size());
  if (stages_ % ranks != 0) {
    fail(fmt::format("{} stages on {} lines; every rank needs the same number of stages", stages_,
                     ranks));
  }
  const int chunks = stages_ / ranks;
  std::vector<Placement> candidates = {
      Placement(Placement::Kind::loop, ranks, chunks, microbatches_)};
  if (chunks > 1) {
    candidates.emplace_back(Placement::Kind::v, ranks, chunks, microbatches_);
  } else if (ranks % 2 == 0 && microbatches_ % 2 == 0) {
    for (int blocks = 1; blocks <= microbatches_ / 2; ++blocks) {
      const int block = microbatches_ / blocks;
      if (microbatches_ % blocks == 0 && block % 2 == 0) {
        candidates.emplace_back(Placement::Kind::mirrored, ranks, chunks, microbatches_, block);
      }
    }
  }
  const CsvCell* furthest = nullptr;  // the first cell that contradicts the best candidate
  for (const Placement& candidate : candidates) {
    const CsvCell* stray = nullptr;
    for_each_computation([&](const CsvCell& cell) {
      if (stray == nullptr && candidate.owner(cell.stage, cell.microbatch) != cell.line - 1) {
        stray = &cell;
      }
    });
    if (stray == nullptr) {
      return candidate;
    }
    const auto position = [](const CsvCell& cell) { return std::pair(cell.line, cell.cell); };
    if (furthest == nullptr || position(*stray) > position(*furthest)) {
      furthest = stray;
    }
  }
  fail(*furthest,
       fmt::format("stage {} is on rank {}, which fits no placement; with {} ranks and {} stages "
                   "loop puts it on rank {}, {}",
                   furthest->stage, furthest->line - 1, ranks, stages_,
                   candidates.front().owner(furthest->stage, furthest->microbatch),
                   chunks > 1
                       ? fmt::format("v on rank {}",
                                     candidates.back().owner(furthest->stage, furthest->microbatch))
                       : "mirrored (half of the micro-batches; p and m even) on rank " +
                             std::to_string(ranks - 1 - furthest->stage)));
}

Schedule Interpreter::schedule() const {
  Schedule result = {"csv", infer_placement(), {}, Update::step, forward_only_, {}};
  std::vector<std::vector<const CsvCell*>> computations;
  for (const std::vector<CsvCell>& row : rows_) {
    std::vector<Action>& actions = result.ranks.emplace_back();
    std::vector<const CsvCell*>& cells = computations.emplace_back();
    for (const CsvCell& cell : row) {
      if (is_compute(cell.letters)) {
        actions.push_back({cell.kind, cell.stage, cell.microbatch, cell.overlaps_next});
        cells.push_back(&cell);
      }
    }
  }
  validate_named(result, source_, [&](int rank, int position) {
    return place_of(*computations[size_t(rank)][size_t(position)]);
  });
  check_transfers(rows_, result.placement, source_);
  result.update = check_updates(rows_, result, source_);
  return result;
}

std::string join_cells(const std::vector<std::vector<Action>>& ranks) {
  std::string text;
  for (const std::vector<Action>& actions : ranks) {
    for (size_t i = 0; i < actions.size(); ++i) {
      text += i == 0 ? "" : ",";
      if (actions[i].overlaps_next && i + 1 < actions.size()) {
        text += fmt::format("({};{}){}", to_string(actions[i]), to_string(actions[i + 1]),
                            kOverlapSuffix);
        ++i;
      } else {
        text += to_string(actions[i]);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace

Schedule parse_csv(const std::string& text, const std::string& source) {
  return Interpreter(read_csv_cells(text, source), source).schedule();
}

Schedule read_csv(const std::string& path) {
  const std::string source = "--schedule csv:" + path;
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem)) {
    throw UsageError(source + ": is a directory; a file is needed");
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    throw UsageError(source + ": the file cannot be read");
  }
  return parse_csv(text, source);
}

std::string to_csv(const Schedule& schedule) {
  return join_cells(schedule.ranks);
}

std::string to_csv(const LoweredSchedule& schedule) {
  std::vector<std::vector<Action>> ranks;
  for (const std::vector<LoweredAction>& lowered : schedule.ranks) {
    std::vector<Action>& actions = ranks.emplace_back();
    for (const LoweredAction& entry : lowered) {
      actions.push_back(entry.action);
    }
  }
  return join_cells(ranks);
}

}  // namespace pipetrain::schedule
