#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "pipetrain/schedule/render.h"
#include "schedule/render_timeline.h"

namespace pipetrain::schedule {
namespace {

constexpr int kNarrowest = 40;

// One column of one row.
struct Column {
  char text = ' ';
  int background = -1;  // of the 256 colours; -1: the terminal's own
  bool dark_text = false;
};

using Row = std::vector<Column>;

// Blue, orange, yellow and green of Okabe and Ito's palette, which colour-blind readers tell apart;
// later chunks are lighter.
struct Paint {
  Kind kind;
  char letter;
  const char* label;
  std::array<int, 4> shades;
};
constexpr std::array<Paint, 5> kPaints = {{
    {Kind::forward, 'F', "forward", {25, 74, 117, 153}},
    {Kind::backward, 'B', "backward", {166, 209, 216, 223}},
    {Kind::backward_input, 'I', "input gradient", {172, 214, 221, 229}},
    {Kind::backward_weight, 'W', "weight gradient", {29, 72, 115, 158}},
    {Kind::optimizer_step, 'O', "optimizer step", {240, 240, 240, 240}},
}};

const Paint& paint_of(Kind kind) {
  const auto found = std::find_if(kPaints.begin(), kPaints.end(),
                                  [&](const Paint& paint) { return paint.kind == kind; });
  return found == kPaints.end() ? kPaints.back() : *found;
}

Column column_of(const Block& block) {
  const Paint& paint = paint_of(block.action.kind);
  const int shade = std::min(block.chunk, int(paint.shades.size()) - 1);
  Column column;
  column.text = block.chunk == 0 ? paint.letter : char(paint.letter - 'A' + 'a');
  column.background = paint.shades[size_t(shade)];
  column.dark_text = shade > 0;
  return column;
}

// The part of its row that a block is drawn on: the actions of an overlapped pair are drawn one
// after the other.
std::pair<double, double> drawn_part(const Block& block) {
  const double middle = (block.start + block.end) / 2;
  return {block.lane == Lane::second_of_pair ? middle : block.start,
          block.lane == Lane::first_of_pair ? middle : block.end};
}

// Columns per unit of time. Where the shortest forward gets a column or more, a whole number of
// them, so that equal actions look equal.
struct Scale {
  double columns_per_time = 1;
  bool own_columns = true;  // every forward has a column or more
  bool whole = true;
};

Scale choose_scale(const Timeline& timeline, int columns) {
  double shortest = timeline.length;
  for (const RankTimeline& rank : timeline.ranks) {
    for (const Block& block : rank.blocks) {
      const auto [start, end] = drawn_part(block);
      if (block.action.kind == Kind::forward && end > start) {
        shortest = std::min(shortest, end - start);
      }
    }
  }
  const double natural = columns / timeline.length;
  const double wanted = std::floor(shortest * natural + 1e-9);
  if (wanted < 1) {
    return {natural, false, false};
  }
  const double whole = wanted / shortest;
  return whole > 0.7 * natural ? Scale{whole, true, true} : Scale{natural, true, false};
}

// Every action on its own columns: F3, B3-- in plain text, its micro-batch on its colour.
void draw_actions(Row& row, const RankTimeline& rank, const Scale& scale, bool colour) {
  for (const Block& block : rank.blocks) {
    const auto [start, end] = drawn_part(block);
    const int first = int(std::lround(start * scale.columns_per_time));
    const int last = std::min(int(std::lround(end * scale.columns_per_time)), int(row.size()));
    const Column column = column_of(block);
    const std::string number = std::to_string(block.action.microbatch);
    std::string label = colour ? number : column.text + number;
    // Where actions that take the same time differ by a column, so few of them would be numbered
    // that it confuses.
    const bool narrow = !scale.whole && last - first < 4;
    if (narrow || int(label.size()) > last - first || block.action.kind == Kind::optimizer_step) {
      label = colour ? "" : std::string(1, column.text);
    }
    for (int i = first; i < last; ++i) {
      row[size_t(i)] = column;
      const size_t at = size_t(i - first);
      row[size_t(i)].text = at < label.size() ? label[at] : colour ? ' ' : '-';
    }
  }
}

// Columns wider than an action. Of what happens in a column it shows what has been shown least so
// far for the time it took, so that kinds and idle time are in proportion everywhere.
void draw_bins(Row& row, const RankTimeline& rank, const Scale& chosen, bool colour) {
  const double scale = chosen.columns_per_time;
  struct Share {
    Column column;
    double owed = 0;  // columns not shown yet
    double here = 0;  // of the current column
  };
  std::vector<Share> shares(1);  // the first is idle time
  size_t block = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    for (Share& share : shares) {
      share.here = 0;
    }
    shares.front().here = 1;
    for (; block < rank.blocks.size(); ++block) {
      const auto [start, end] = drawn_part(rank.blocks[block]);
      const double part = std::min(end * scale, double(i) + 1) - std::max(start * scale, double(i));
      if (part > 0) {
        const Column column = column_of(rank.blocks[block]);
        auto found = std::find_if(shares.begin() + 1, shares.end(), [&](const Share& share) {
          return share.column.text == column.text && share.column.background == column.background;
        });
        if (found == shares.end()) {
          found = shares.insert(shares.end(), {column, 0, 0});
        }
        found->here += part;
        shares.front().here -= part;
      }
      if (end * scale > double(i) + 1) {
        break;  // the next column has the rest
      }
    }
    Share* most = nullptr;
    for (Share& share : shares) {
      share.owed += share.here;
      if (share.here > 1e-9 && (most == nullptr || share.owed > most->owed + 1e-9)) {
        most = &share;
      }
    }
    most->owed -= 1;
    row[i] = most->column;
    row[i].text = colour ? ' ' : row[i].text;
  }
}

std::string escape(const Column& column) {
  return column.background < 0 ? "\x1b[0m"
                               : fmt::format("\x1b[0;38;5;{};48;5;{}m", column.dark_text ? 16 : 231,
                                             column.background);
}

std::string to_text(const Row& row, bool colour) {
  std::string text;
  Column before;
  for (const Column& column : row) {
    if (colour &&
        (column.background != before.background || column.dark_text != before.dark_text)) {
      text += escape(column);
    }
    text += column.text;
    before = column;
  }
  return colour && before.background >= 0 ? text + "\x1b[0m" : text;
}

std::string axis(double length, double scale, int columns) {
  const double step = axis_step(length, std::max(1, columns / 10));
  std::string line(size_t(columns), ' ');
  for (int tick = 0; tick * step <= length; ++tick) {
    const std::string label = "|" + short_number(tick * step);
    const size_t at = size_t(std::lround(tick * step * scale));
    if (at + label.size() <= line.size()) {
      line.replace(at, label.size(), label);
    }
  }
  return line;
}

std::string legend(const Timeline& timeline, bool colour) {
  std::string text;
  for (const Paint& paint : kPaints) {
    const bool shown =
        paint.kind == Kind::forward || (paint.kind == Kind::backward && timeline.whole_backward) ||
        ((paint.kind == Kind::backward_input || paint.kind == Kind::backward_weight) &&
         timeline.split_backward);
    if (!shown) {
      continue;
    }
    text += text.empty() ? "" : "   ";
    if (colour) {
      for (int chunk = 0; chunk < std::min(timeline.chunks, int(paint.shades.size())); ++chunk) {
        text += fmt::format("\x1b[48;5;{}m  ", paint.shades[size_t(chunk)]);
      }
      text += fmt::format("\x1b[0m {}", paint.label);
    } else {
      text += fmt::format("{} {}", paint.letter, paint.label);
    }
  }
  return text;
}

}  // namespace

std::string render_ascii(const Simulation& simulation, const Schedule& schedule,
                         const RenderOptions& options) {
  const Timeline timeline = make_timeline(simulation, schedule, options.weight_memory);
  const bool mirrored = schedule.placement.kind() == Placement::Kind::mirrored;
  const int rank_width = int(std::to_string(timeline.ranks.size() - 1).size());
  std::vector<std::string> peaks;
  size_t peak_width = 4;
  for (const RankTimeline& rank : timeline.ranks) {
    peaks.push_back(short_number(rank.peak));
    peak_width = std::max(peak_width, peaks.back().size());
  }
  // "12 |" before the row, "| 27% 10.5" after it.
  const int width = std::max(options.width, kNarrowest);
  const int columns = width - (rank_width + 2) - (1 + 4 + 1 + int(peak_width));
  const Scale scale = choose_scale(timeline, columns);
  const int used =
      std::clamp(int(std::lround(timeline.length * scale.columns_per_time)), 1, columns);

  std::string text =
      fmt::format("{}: {}\n", schedule.name, picture_subtitle(schedule)) +
      fmt::format("{}{} for a step, bubble {:.1f}%\n", short_number(timeline.length),
                  options.time_unit.empty() ? "" : " " + options.time_unit, 100 * timeline.bubble);
  text += fmt::format("{:<{}}{:>4} {:>{}}\n", "rank", rank_width + 3 + used, "idle", "peak",
                      peak_width);
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    const RankTimeline& rank = timeline.ranks[r];
    Row row(static_cast<size_t>(used));
    (scale.own_columns ? draw_actions : draw_bins)(row, rank, scale, options.colour);
    const double idle = timeline.length > 0 ? 1 - rank.busy / timeline.length : 0;
    text += fmt::format("{:>{}} |{}|{:>3.0f}% {:>{}}\n", r, rank_width,
                        to_text(row, options.colour), std::abs(100 * idle), peaks[r], peak_width);
  }
  text += fmt::format("{:{}}{}\n", "", rank_width + 2,
                      axis(timeline.length, scale.columns_per_time, used));
  text += legend(timeline, options.colour) + "\n";
  std::string notes;
  if (!scale.own_columns) {
    notes += fmt::format("a column is {}{}", short_number(1 / scale.columns_per_time),
                         options.time_unit.empty() ? "" : " " + options.time_unit);
  }
  if (timeline.chunks > 1) {
    notes += notes.empty() ? "" : "; ";
    notes += options.colour ? "lighter: " : "lower case: ";
    notes += mirrored ? "second direction" : timeline.chunks == 2 ? "second chunk" : "later chunks";
  }
  return notes.empty() ? text : text + notes + "\n";
}

}  // namespace pipetrain::schedule
