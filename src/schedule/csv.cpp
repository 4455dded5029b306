#include "pipetrain/schedule/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "pipetrain/error.h"

namespace pipetrain::schedule {
namespace {

// Bounds numbers before they are multiplied: p*v stages, m micro-batches.
constexpr int kLargestNumber = 999'999;

constexpr std::string_view kOverlap = "OVERLAP_F_B";

// What the letters of a cell say; the two dialects give B two meanings, settled once the whole
// file is read.
enum class Letters { F, B, I, W, BW, communication, reduce, step };

struct Cell {
  std::string text;
  int line = 0;  // from 1
  int cell = 0;  // from 1
  Letters letters = Letters::F;
  int stage = 0;
  int microbatch = 0;
  bool overlaps_next = false;
  Kind kind = Kind::forward;  // set by resolve_dialect
};

class Reader {
 public:
  Reader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  Schedule read();

 private:
  [[noreturn]] void fail(const Cell& cell, const std::string& problem) const {
    throw UsageError(fmt::format("{}: line {}, cell {} ({}): {}", source_, cell.line, cell.cell,
                                 cell.text, problem));
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw UsageError(fmt::format("{}: {}", source_, problem));
  }

  void read_rows();
  void read_cell(Cell cell, std::vector<Cell>& row) const;
  void read_pair(const Cell& cell, std::vector<Cell>& row) const;
  Cell read_action(Cell cell, std::string_view action) const;
  int read_number(const Cell& cell, std::string_view digits, const char* what) const;
  void resolve_dialect();
  void check_complete() const;
  Placement infer_placement() const;

  template <typename Visit>
  void for_each_cell(Visit visit) const {
    for (const std::vector<Cell>& row : rows_) {
      for (const Cell& cell : row) {
        visit(cell);
      }
    }
  }

  std::string_view text_;
  const std::string& source_;
  std::vector<std::vector<Cell>> rows_;
  int stages_ = 0;
  int microbatches_ = 0;
};

std::string_view trim(std::string_view text) {
  const char* blank = " \t\r";
  const size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.size()) {
      return parts;
    }
    begin = end + 1;
  }
}

bool is_pass(Letters letters) {  // a computation: F, B, I, W or BW
  return letters <= Letters::BW;
}

// Shortens what the user gave so that an error stays one line.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 40)) {
    result += c >= ' ' && c <= '~' ? c : '?';
  }
  return text.size() > 40 ? result + "..." : result;
}

int Reader::read_number(const Cell& cell, std::string_view digits, const char* what) const {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range || value > kLargestNumber) {
    fail(cell, fmt::format("the {} is too large; the largest is {}", what, kLargestNumber));
  }
  if (error != std::errc() || end != digits.data() + digits.size()) {
    fail(cell, fmt::format("the {} is missing or not a number", what));
  }
  if (value < 0) {
    fail(cell, fmt::format("the {} is negative; it counts from 0", what));
  }
  return value;
}

// <stage><letters><micro-batch>
Cell Reader::read_action(Cell cell, std::string_view action) const {
  static const std::map<std::string_view, Letters> kLetters = {
      {"F", Letters::F},
      {"B", Letters::B},
      {"I", Letters::I},
      {"W", Letters::W},
      {"BW", Letters::BW},
      {"SEND_F", Letters::communication},
      {"RECV_F", Letters::communication},
      {"SEND_B", Letters::communication},
      {"RECV_B", Letters::communication},
      {"UNSHARD", Letters::communication},
      {"RESHARD", Letters::communication},
      {"REDUCE_GRAD", Letters::reduce},
      {"OPTIMIZER_STEP", Letters::step},
  };
  const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto begin = std::find_if(action.begin(), action.end(), is_letter);
  const auto end = std::find_if_not(begin, action.end(), is_letter);
  const std::string_view stage = action.substr(0, size_t(begin - action.begin()));
  const std::string_view letters = action.substr(stage.size(), size_t(end - begin));
  const std::string_view microbatch = action.substr(stage.size() + letters.size());
  const auto found = kLetters.find(letters);
  if (found == kLetters.end()) {
    fail(cell,
         letters.empty()
             ? std::string("a cell is <stage><letters><micro-batch>, as in 0F3")
             : fmt::format("unknown letters '{}'; allowed are F, B, I, W, BW, SEND_F, RECV_F, "
                           "SEND_B, RECV_B, REDUCE_GRAD, OPTIMIZER_STEP",
                           shown(letters)));
  }
  cell.letters = found->second;
  const bool numbered = is_pass(cell.letters) ||
                        (cell.letters == Letters::communication && !letters.ends_with("SHARD"));
  if (cell.letters != Letters::step || !stage.empty()) {
    cell.stage = read_number(cell, stage, "stage");
  }
  if (numbered || !microbatch.empty()) {
    cell.microbatch = read_number(cell, microbatch, "micro-batch");
  }
  return cell;
}

// (0F7;7B3)OVERLAP_F_B
void Reader::read_pair(const Cell& cell, std::vector<Cell>& row) const {
  const std::string_view text = cell.text;
  const size_t close = text.find(')');
  if (close == std::string_view::npos || text.substr(close + 1) != kOverlap) {
    fail(cell, "an overlapped pair is (<F>;<B>)OVERLAP_F_B, as in (0F7;7B3)OVERLAP_F_B");
  }
  const std::vector<std::string_view> parts = split(text.substr(1, close - 1), ';');
  if (parts.size() != 2) {
    fail(cell, fmt::format("an overlapped pair has 2 actions; here are {}", parts.size()));
  }
  Cell first = read_action(cell, trim(parts[0]));
  const Cell second = read_action(cell, trim(parts[1]));
  const auto is_backward = [](Letters letters) {
    return letters == Letters::B || letters == Letters::I || letters == Letters::BW;
  };
  if (first.letters != Letters::F || !is_backward(second.letters)) {
    fail(cell, "an overlapped pair is a forward and then a backward");
  }
  first.overlaps_next = true;
  row.push_back(first);
  row.push_back(second);
}

void Reader::read_cell(Cell cell, std::vector<Cell>& row) const {
  if (cell.text.empty()) {
    return;  // an idle step
  }
  if (cell.text.front() == '(') {
    read_pair(cell, row);
    return;
  }
  const Cell read = read_action(cell, cell.text);
  if (read.letters != Letters::communication && read.letters != Letters::reduce) {
    row.push_back(read);  // lower() puts the communication in again
  }
}

void Reader::read_rows() {
  if (text_.starts_with("\xEF\xBB\xBF")) {
    text_.remove_prefix(3);
  }
  std::vector<std::string_view> lines = split(text_, '\n');
  while (!lines.empty() && trim(lines.back()).empty()) {
    lines.pop_back();
  }
  if (lines.empty()) {
    fail("the file is empty; it needs a line per rank with cells like 0F0");
  }
  for (size_t line = 0; line < lines.size(); ++line) {
    std::vector<Cell>& row = rows_.emplace_back();
    const std::vector<std::string_view> cells = split(lines[line], ',');
    for (size_t i = 0; i < cells.size(); ++i) {
      Cell cell;
      cell.text = trim(cells[i]);
      cell.line = int(line) + 1;
      cell.cell = int(i) + 1;
      if (cell.text.size() > 80) {
        cell.text = shown(cell.text);
        fail(cell, "the cell is too long");
      }
      cell.text = cell.text == shown(cell.text) || cell.text.front() == '(' ? cell.text
                                                                            : shown(cell.text);
      read_cell(cell, row);
    }
    if (row.empty()) {
      fail(fmt::format("line {}, cell 1: rank {} has no computation; every line is a rank",
                       line + 1, line));
    }
  }
}

// Today B is the whole backward. Older files write B for the input gradient where the same (stage,
// micro-batch) also has a W, and BW for the whole.
void Reader::resolve_dialect() {
  std::map<std::pair<int, int>, bool> has_weight;
  const Cell* whole = nullptr;
  for_each_cell([&](const Cell& cell) {
    if (cell.letters == Letters::W) {
      has_weight[{cell.stage, cell.microbatch}] = true;
    }
    if (cell.letters == Letters::BW) {
      whole = &cell;
    }
  });
  for (std::vector<Cell>& row : rows_) {
    for (Cell& cell : row) {
      const bool split = has_weight.count({cell.stage, cell.microbatch}) > 0;
      switch (cell.letters) {
        case Letters::F:
          cell.kind = Kind::forward;
          break;
        case Letters::I:
          if (whole != nullptr) {
            fail(cell, fmt::format("I is today's dialect, but line {}, cell {} ({}) is the older "
                                   "one, in which B is the input gradient",
                                   whole->line, whole->cell, whole->text));
          }
          cell.kind = Kind::backward_input;
          break;
        case Letters::B:
          if (whole != nullptr && !split) {
            fail(cell, fmt::format("no {}W{} for it; in the older dialect, which the file's BW "
                                   "cells show, B is the input gradient alone",
                                   cell.stage, cell.microbatch));
          }
          cell.kind = split ? Kind::backward_input : Kind::backward;
          break;
        case Letters::BW:
          cell.kind = Kind::backward;
          break;
        case Letters::W:
          cell.kind = Kind::backward_weight;
          break;
        case Letters::step:
          cell.kind = Kind::optimizer_step;
          break;
        case Letters::communication:
        case Letters::reduce:
          break;
      }
    }
  }
}

// Every (stage, micro-batch) has one F and either one B or one I and one W.
void Reader::check_complete() const {
  std::map<std::pair<int, int>, std::map<Kind, const Cell*>> seen;
  for_each_cell([&](const Cell& cell) {
    if (!is_pass(cell.letters)) {
      return;
    }
    std::map<Kind, const Cell*>& kinds = seen[{cell.stage, cell.microbatch}];
    const auto [at, fresh] = kinds.emplace(cell.kind, &cell);
    if (!fresh) {
      fail(cell, fmt::format("duplicate of line {}, cell {}", at->second->line, at->second->cell));
    }
  });
  for (int stage = 0; stage < stages_; ++stage) {
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
      const auto found = seen.find({stage, microbatch});
      const bool forward = found != seen.end() && found->second.count(Kind::forward) > 0;
      if (found == seen.end()) {
        fail(fmt::format("{}F{} is missing; the cells name {} stages and {} micro-batches", stage,
                         microbatch, stages_, microbatches_));
      }
      const std::map<Kind, const Cell*>& kinds = found->second;
      if (!forward) {
        fail(*kinds.begin()->second, fmt::format("there is no {}F{}", stage, microbatch));
      }
      const auto has = [&](Kind kind) { return kinds.count(kind) > 0; };
      const bool input = has(Kind::backward_input);
      const bool weight = has(Kind::backward_weight);
      if (has(Kind::backward) && (input || weight)) {
        fail(*kinds.at(Kind::backward),
             fmt::format("stage {}, micro-batch {} also has {}; the whole backward stands alone",
                         stage, microbatch, input ? "I" : "W"));
      }
      if (input != weight) {
        fail(*kinds.at(input ? Kind::backward_input : Kind::backward_weight),
             fmt::format("there is no {}{}{}", stage, input ? "W" : "I", microbatch));
      }
      if (!has(Kind::backward) && !input) {
        fail(*kinds.at(Kind::forward), fmt::format("it has no backward; {}B{}, or {}I{} and {}W{}, "
                                                   "is missing",
                                                   stage, microbatch, stage, microbatch, stage,
                                                   microbatch));
      }
    }
  }
}

// The placement under which every cell stands on its owner's line.
Placement Reader::infer_placement() const {
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
    candidates.emplace_back(Placement::Kind::mirrored, ranks, chunks, microbatches_);
  }
  const Cell* furthest = nullptr;  // the first cell that contradicts the best candidate
  for (const Placement& candidate : candidates) {
    const Cell* stray = nullptr;
    for_each_cell([&](const Cell& cell) {
      if (stray == nullptr && is_pass(cell.letters) &&
          candidate.owner(cell.stage, cell.microbatch) != cell.line - 1) {
        stray = &cell;
      }
    });
    if (stray == nullptr) {
      return candidate;
    }
    const auto position = [](const Cell& cell) { return std::pair(cell.line, cell.cell); };
    if (furthest == nullptr || position(*stray) > position(*furthest)) {
      furthest = stray;
    }
  }
  fail(*furthest,
       fmt::format("stage {} is on rank {}, which fits no placement; with {} ranks and {} stages "
                   "loop puts it on rank {}, {}",
                   furthest->stage, furthest->line - 1, ranks, stages_,
                   candidates.front().owner(furthest->stage, furthest->microbatch),
                   chunks > 1 ? fmt::format("v on rank {}", candidates.back().owner(
                                                                furthest->stage,
                                                                furthest->microbatch))
                              : "mirrored (for m/2 of the micro-batches, p and m even) on rank " +
                                    std::to_string(ranks - 1 - furthest->stage)));
}

Schedule Reader::read() {
  read_rows();
  for_each_cell([&](const Cell& cell) {
    stages_ = std::max(stages_, cell.stage + 1);
    microbatches_ = std::max(microbatches_, cell.microbatch + 1);
  });
  resolve_dialect();
  check_complete();
  Schedule schedule{"csv", infer_placement(), {}};
  for (const std::vector<Cell>& row : rows_) {
    std::vector<Action>& actions = schedule.ranks.emplace_back();
    for (const Cell& cell : row) {
      actions.push_back({cell.kind, cell.stage, cell.microbatch, cell.overlaps_next});
    }
  }
  return schedule;
}

std::string join_cells(const std::vector<std::vector<Action>>& ranks) {
  std::string text;
  for (const std::vector<Action>& actions : ranks) {
    for (size_t i = 0; i < actions.size(); ++i) {
      text += i == 0 ? "" : ",";
      if (actions[i].overlaps_next && i + 1 < actions.size()) {
        text += fmt::format("({};{}){}", to_string(actions[i]), to_string(actions[i + 1]), kOverlap);
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
  return Reader(text, source).read();
}

std::string to_csv(const Schedule& schedule) { return join_cells(schedule.ranks); }

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
