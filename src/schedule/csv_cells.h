#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipetrain/schedule/action.h"

namespace pipetrain::schedule {

inline constexpr std::string_view kOverlapSuffix = "OVERLAP_F_B";

// What the letters of a cell say. The two dialects give B two meanings, settled once the whole file
// is read. `other`: sharded weights come and go (UNSHARD, RESHARD).
enum class CsvLetters {
  F,
  B,
  I,
  W,
  BW,
  SEND_F,
  RECV_F,
  SEND_B,
  RECV_B,
  REDUCE_GRAD,
  OPTIMIZER_STEP,
  other
};

// F, B, I, W or BW.
inline bool is_compute(CsvLetters letters) {
  return letters <= CsvLetters::BW;
}

struct CsvCell {
  std::string text;
  int line = 0;  // from 1
  int cell = 0;  // from 1
  CsvLetters letters = CsvLetters::F;
  int stage = 0;
  int microbatch = 0;
  bool overlaps_next = false;
  Kind kind = Kind::forward;  // of a computation: for who settles the dialect
};

// "line 2, cell 3 (0F9)".
std::string place_of(const CsvCell& cell);

// Throws UsageError: "<source>: line 2, cell 3 (0F9): <problem>".
[[noreturn]] void fail_at_cell(const std::string& source, const CsvCell& cell,
                               const std::string& problem);

// The cells of every line, one line per rank; an overlapped pair gives two. Throws UsageError with
// line and cell for what is no cell, and for lines without a computation.
std::vector<std::vector<CsvCell>> read_csv_cells(std::string_view text, const std::string& source);

}  // namespace pipetrain::schedule
