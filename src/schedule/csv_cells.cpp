#include "schedule/csv_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "pipetrain/error.h"

namespace pipetrain::schedule {
namespace {

// Bounds numbers before they are multiplied: p*v stages, m micro-batches.
constexpr int kLargestNumber = 999'999;

// Shortens what the user gave so that an error stays one line.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 40)) {
    result += c >= ' ' && c <= '~' ? c : '?';
  }
  return text.size() > 40 ? result + "..." : result;
}

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

const std::map<std::string_view, CsvLetters>& known_letters() {
  static const std::map<std::string_view, CsvLetters> kLetters = {
      {"F", CsvLetters::F},
      {"B", CsvLetters::B},
      {"I", CsvLetters::I},
      {"W", CsvLetters::W},
      {"BW", CsvLetters::BW},
      {"SEND_F", CsvLetters::SEND_F},
      {"RECV_F", CsvLetters::RECV_F},
      {"SEND_B", CsvLetters::SEND_B},
      {"RECV_B", CsvLetters::RECV_B},
      {"REDUCE_GRAD", CsvLetters::REDUCE_GRAD},
      {"OPTIMIZER_STEP", CsvLetters::OPTIMIZER_STEP},
      {"UNSHARD", CsvLetters::other},
      {"RESHARD", CsvLetters::other},
  };
  return kLetters;
}

class CellReader {
 public:
  explicit CellReader(const std::string& source) : source_(source) {}

  // Appends what the cell holds: nothing, an action or a pair.
  void read(const CsvCell& cell, std::vector<CsvCell>& row) const;

 private:
  [[noreturn]] void fail(const CsvCell& cell, const std::string& problem) const {
    fail_at_cell(source_, cell, problem);
  }
  void read_pair(const CsvCell& cell, std::vector<CsvCell>& row) const;
  CsvCell read_action(CsvCell cell, std::string_view action) const;
  int read_number(const CsvCell& cell, std::string_view digits, const char* what) const;

  const std::string& source_;
};

int CellReader::read_number(const CsvCell& cell, std::string_view digits, const char* what) const {
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
CsvCell CellReader::read_action(CsvCell cell, std::string_view action) const {
  const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto begin = std::find_if(action.begin(), action.end(), is_letter);
  const auto end = std::find_if_not(begin, action.end(), is_letter);
  const std::string_view stage = action.substr(0, size_t(begin - action.begin()));
  const std::string_view letters = action.substr(stage.size(), size_t(end - begin));
  const std::string_view microbatch = action.substr(stage.size() + letters.size());
  if (letters.empty()) {
    fail(cell, "a cell is <stage><letters><micro-batch>, as in 0F3");
  }
  const auto found = known_letters().find(letters);
  if (found == known_letters().end()) {
    fail(cell, fmt::format("unknown letters '{}'; allowed are F, B, I, W, BW, SEND_F, RECV_F, "
                           "SEND_B, RECV_B, REDUCE_GRAD, OPTIMIZER_STEP",
                           shown(letters)));
  }
  cell.letters = found->second;
  if (cell.letters != CsvLetters::OPTIMIZER_STEP || !stage.empty()) {
    cell.stage = read_number(cell, stage, "stage");
  }
  const bool numbered = cell.letters < CsvLetters::REDUCE_GRAD;
  if (numbered || !microbatch.empty()) {
    cell.microbatch = read_number(cell, microbatch, "micro-batch");
  }
  return cell;
}

// (0F7;7B3)OVERLAP_F_B
void CellReader::read_pair(const CsvCell& cell, std::vector<CsvCell>& row) const {
  const std::string_view text = cell.text;
  const size_t close = text.find(')');
  if (close == std::string_view::npos || text.substr(close + 1) != kOverlapSuffix) {
    fail(cell, "an overlapped pair is (<F>;<B>)OVERLAP_F_B, as in (0F7;7B3)OVERLAP_F_B");
  }
  const std::vector<std::string_view> parts = split(text.substr(1, close - 1), ';');
  if (parts.size() != 2) {
    fail(cell, fmt::format("an overlapped pair has 2 actions; here are {}", parts.size()));
  }
  CsvCell first = read_action(cell, trim(parts[0]));
  const CsvCell second = read_action(cell, trim(parts[1]));
  const auto is_backward = [](CsvLetters letters) {
    return letters == CsvLetters::B || letters == CsvLetters::I || letters == CsvLetters::BW;
  };
  if (first.letters != CsvLetters::F || !is_backward(second.letters)) {
    fail(cell, "an overlapped pair is a forward and then a backward");
  }
  first.overlaps_next = true;
  row.push_back(first);
  row.push_back(second);
}

void CellReader::read(const CsvCell& cell, std::vector<CsvCell>& row) const {
  if (cell.text.empty()) {
    return;  // an idle step
  }
  if (cell.text.front() == '(') {
    read_pair(cell, row);
  } else {
    row.push_back(read_action(cell, cell.text));
  }
}

}  // namespace

std::string place_of(const CsvCell& cell) {
  return fmt::format("line {}, cell {} ({})", cell.line, cell.cell, shown(cell.text));
}

void fail_at_cell(const std::string& source, const CsvCell& cell, const std::string& problem) {
  throw UsageError(fmt::format("{}: {}: {}", source, place_of(cell), problem));
}

std::vector<std::vector<CsvCell>> read_csv_cells(std::string_view text, const std::string& source) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.remove_prefix(3);  // byte order mark
  }
  std::vector<std::string_view> lines = split(text, '\n');
  while (!lines.empty() && trim(lines.back()).empty()) {
    lines.pop_back();
  }
  if (lines.empty()) {
    throw UsageError(
        fmt::format("{}: the file is empty; it needs a line per rank with cells like 0F0", source));
  }
  const CellReader reader(source);
  std::vector<std::vector<CsvCell>> rows;
  for (size_t line = 0; line < lines.size(); ++line) {
    std::vector<CsvCell>& row = rows.emplace_back();
    const std::vector<std::string_view> cells = split(lines[line], ',');
    for (size_t i = 0; i < cells.size(); ++i) {
      CsvCell cell;
      cell.text = trim(cells[i]);
      cell.line = int(line) + 1;
      cell.cell = int(i) + 1;
      reader.read(cell, row);
    }
    if (std::none_of(row.begin(), row.end(),
                     [](const CsvCell& cell) { return is_compute(cell.letters); })) {
      throw UsageError(fmt::format("{}: line {}: rank {} has no computation; every line is a rank",
                                   source, line + 1, line));
    }
  }
  return rows;
}

}  // namespace pipetrain::schedule
