#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "pipetrain/schedule/render.h"
#include "schedule/render_timeline.h"

namespace pipetrain::schedule {
namespace {

// All lengths in pixels.
constexpr double kWidth = 1220;
constexpr double kLeft = 70;     // of the time axis
constexpr double kRight = 1130;  // the peaks stand to the right of it
constexpr double kTop = 92;      // of the first row
constexpr double kPlotHeight = 110;

struct Paint {
  Kind kind;
  const char* label;
  std::array<const char*, 4> fills;  // per chunk of the rank, later ones lighter
};

// Okabe and Ito's palette, which colour-blind readers tell apart.
constexpr std::array<Paint, 4> kPaints = {{
    {Kind::forward, "forward", {"#0072b2", "#56b4e9", "#9ad2f2", "#c9e8f9"}},
    {Kind::backward, "backward", {"#d55e00", "#f0965a", "#f6bd98", "#fbdecb"}},
    {Kind::backward_input, "input gradient", {"#e69f00", "#f5c75e", "#f9dd9c", "#fdefcf"}},
    {Kind::backward_weight, "weight gradient", {"#009e73", "#5cc9a7", "#9fdfc9", "#cff0e5"}},
}};

const Paint* paint_of(Kind kind) {
  const auto found = std::find_if(kPaints.begin(), kPaints.end(),
                                  [&](const Paint& paint) { return paint.kind == kind; });
  return found == kPaints.end() ? nullptr : &*found;
}

bool occurs(const Timeline& timeline, Kind kind) {
  return kind == Kind::forward ||
         (kind == Kind::backward ? timeline.whole_backward : timeline.split_backward);
}

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return result;
}

class Picture {
 public:
  Picture(const Timeline& timeline, const Schedule& schedule, const RenderOptions& options)
      : timeline_(timeline),
        schedule_(schedule),
        options_(options),
        pitch_(timeline.ranks.size() <= 8    ? 30
               : timeline.ranks.size() <= 16 ? 22
               : timeline.ranks.size() <= 32 ? 14
                                             : 8),
        bottom_(kTop + pitch_ * double(timeline.ranks.size())),
        plot_top_(bottom_ + 74),
        plot_bottom_(plot_top_ + kPlotHeight) {}

  std::string draw() {
    begin();
    header();
    legend();
    for (size_t r = 0; r < timeline_.ranks.size(); ++r) {
      row(r);
    }
    phases();
    axis(bottom_, true);
    memory();
    add("</svg>\n");
    return text_;
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  double x(double time) const {
    return kLeft + (kRight - kLeft) * (timeline_.length > 0 ? time / timeline_.length : 0);
  }

  void begin();
  void header();
  void legend();
  void row(size_t rank);
  void block(const Block& block, double top, double height);
  void phases();
  void axis(double y, bool labelled);
  void memory();

  const Timeline& timeline_;
  const Schedule& schedule_;
  const RenderOptions& options_;
  double pitch_;  // of the rows
  double bottom_;
  double plot_top_;
  double plot_bottom_;
  std::string text_;
};

void Picture::begin() {
  const double height = plot_bottom_ + 40;
  add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" "
      "font-size=\"13\" fill=\"#222\">\n",
      kWidth, height);
  add("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
}

void Picture::header() {
  add("<text x=\"{}\" y=\"30\" font-size=\"20\" font-weight=\"bold\">{}</text>\n", kLeft,
      escape(schedule_.name));
  const std::string unit = options_.time_unit.empty() ? "" : " " + options_.time_unit;
  add("<text x=\"{}\" y=\"50\" fill=\"#555\">{}; {}{} for a step, bubble {:.1f}%</text>\n", kLeft,
      escape(picture_subtitle(schedule_)), short_number(timeline_.length), escape(unit),
      100 * timeline_.bubble);
}

void Picture::legend() {
  double at = kRight;
  for (auto paint = kPaints.rbegin(); paint != kPaints.rend(); ++paint) {
    if (!occurs(timeline_, paint->kind)) {
      continue;
    }
    const int shades = std::min(timeline_.chunks, int(paint->fills.size()));
    at -= 7.2 * double(std::char_traits<char>::length(paint->label)) + 8;
    add("<text x=\"{:.1f}\" y=\"30\">{}</text>\n", at, paint->label);
    for (int shade = shades - 1; shade >= 0; --shade) {
      at -= 15;
      add("<rect x=\"{:.1f}\" y=\"19\" width=\"15\" height=\"13\" fill=\"{}\"/>\n", at - 5,
          paint->fills[size_t(shade)]);
    }
    at -= 18;
  }
  if (timeline_.chunks > 1) {
    const bool mirrored = schedule_.placement.kind() == Placement::Kind::mirrored;
    add("<text x=\"{}\" y=\"50\" text-anchor=\"end\" fill=\"#555\">{}</text>\n", kRight,
        mirrored ? "dark: first direction, light: second"
                 : "dark: first chunk of the rank, lighter: later ones");
  }
}

void Picture::block(const Block& block, double top, double height) {
  const Paint* paint = paint_of(block.action.kind);
  if (paint == nullptr) {
    return;
  }
  if (block.lane != Lane::whole) {
    height /= 2;
    top += block.lane == Lane::second_of_pair ? height : 0;
  }
  const int shade = std::min(block.chunk, int(paint->fills.size()) - 1);
  const double left = x(block.start);
  const double width = x(block.end) - left;
  const double gap = width > 5 ? 1 : width > 2.5 ? 0.5 : 0;
  add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", left,
      top, std::max(width - gap, 0.3), height, paint->fills[size_t(shade)]);
  // Of actions that take the same time either all are numbered or none.
  const size_t digits = std::to_string(schedule_.placement.microbatches() - 1).size();
  const double size = std::min({12.0, height - 3, (width - 3) / (0.58 * double(digits))});
  if (size >= 6) {
    const bool light_text = shade == 0 && block.action.kind != Kind::backward_input;
    add("<text x=\"{:.2f}\" y=\"{:.1f}\" font-size=\"{:.1f}\" text-anchor=\"middle\" "
        "fill=\"{}\">{}</text>\n",
        left + (width - gap) / 2, top + height / 2 + 0.36 * size, size,
        light_text ? "#fff" : "#222", block.action.microbatch);
  }
}

void Picture::row(size_t r) {
  const RankTimeline& rank = timeline_.ranks[r];
  const double top = kTop + pitch_ * double(r);
  const double height = pitch_ - (pitch_ >= 14 ? 4 : 1);
  const double middle = top + height / 2;
  // Idle time shows the row's own colour.
  add("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#f1f1f1\"/>\n", kLeft,
      top, kRight - kLeft, height);
  if (pitch_ >= 14 || r % 4 == 0) {
    add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"{}\">rank {}</text>\n",
        kLeft - 8, middle + 4, pitch_ >= 22 ? 13 : 11, r);
    const double idle = timeline_.length > 0 ? 1 - rank.busy / timeline_.length : 0;
    add("<text x=\"{}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"#555\">{:.0f}% idle</text>\n",
        kRight + 8, middle + 4, pitch_ >= 22 ? 12 : 10, std::abs(100 * idle));
  }
  for (const Block& one : rank.blocks) {
    block(one, top, height);
  }
}

// Two stepped lines through all rows: where the first backward starts and the last forward ends.
void Picture::phases() {
  if (!timeline_.whole_backward && !timeline_.split_backward) {
    return;
  }
  const auto boundary = [&](auto time_of) {
    std::string points;
    for (size_t r = 0; r < timeline_.ranks.size(); ++r) {
      const double at = x(time_of(timeline_.ranks[r]));
      const double top = kTop + pitch_ * double(r) - 2;
      points += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", at, top, at, top + pitch_);
    }
    for (const auto& [stroke, width] : {std::pair("#fff", 4.0), std::pair("#111", 1.8)}) {
      add("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"/>\n", points,
          stroke, width);
    }
  };
  boundary([](const RankTimeline& rank) { return rank.steady_begin; });
  boundary([](const RankTimeline& rank) { return rank.cooldown_begin; });
  const RankTimeline& first = timeline_.ranks.front();
  const double begin = x(std::min(first.steady_begin, first.cooldown_begin));
  const double end = x(std::max(first.steady_begin, first.cooldown_begin));
  const auto label = [&](double from, double to, const char* name) {
    if (to - from > 52) {
      add("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" font-size=\"12\" "
          "fill=\"#555\">{}</text>\n",
          (from + to) / 2, kTop - 9, name);
    }
  };
  label(kLeft, begin, "warm-up");
  label(begin, end, "steady");
  label(end, kRight, "cool-down");
}

void Picture::axis(double y, bool labelled) {
  const double step = axis_step(timeline_.length, 12);
  add("<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#888\"/>\n", kLeft, y,
      kRight);
  for (int tick = 0; tick * step <= timeline_.length * (1 + 1e-9); ++tick) {
    const double at = x(tick * step);
    add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#888\"/>\n", at,
        y, y + 5);
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"12\">{}</text>\n", at,
        y + 18, short_number(tick * step));
  }
  if (labelled) {
    const std::string unit = options_.time_unit.empty() ? "" : " (" + options_.time_unit + ")";
    add("<text x=\"{}\" y=\"{:.1f}\" font-size=\"12\" fill=\"#555\">time{}</text>\n", kRight + 20,
        y + 18, escape(unit));
  }
}

// What each rank holds, from rank 0 (dark) to rank p-1 (light).
void Picture::memory() {
  double peak = 0;
  for (const RankTimeline& rank : timeline_.ranks) {
    peak = std::max(peak, rank.peak);
  }
  add("<text x=\"{}\" y=\"{:.1f}\"><tspan font-weight=\"bold\">Activations held</tspan> <tspan "
      "fill=\"#555\">in micro-batches of one "
      "rank's share; peak {}</tspan></text>\n",
      kLeft, plot_top_ - 12, short_number(peak));
  const double scale = peak > 0 ? kPlotHeight / peak : 0;
  const double step = axis_step(peak, 4);
  for (int tick = 0; tick * step <= peak * (1 + 1e-9); ++tick) {
    const double y = plot_bottom_ - tick * step * scale;
    add("<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#e4e4e4\"/>\n", kLeft,
        y, kRight);
    add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"12\">{}</text>\n", kLeft - 8,
        y + 4, short_number(tick * step));
  }
  const size_t ranks = timeline_.ranks.size();
  const auto stroke = [&](size_t r) {  // from dark purple to orange
    const double part = ranks > 1 ? double(r) / double(ranks - 1) : 0;
    const auto mix = [&](int from, int to) { return int(std::lround(from + (to - from) * part)); };
    return fmt::format("#{:02x}{:02x}{:02x}", mix(0x3b, 0xe6), mix(0x0f, 0x9f), mix(0x70, 0x3c));
  };
  for (size_t r = ranks; r-- > 0;) {
    std::string points = fmt::format("{},{:.1f}", kLeft, plot_bottom_);
    double y = plot_bottom_;
    for (const MemoryStep& change : timeline_.ranks[r].memory) {
      const double at = x(change.time);
      points += fmt::format(" {:.1f},{:.1f}", at, y);
      y = plot_bottom_ - std::max(0.0, change.held) * scale;
      points += fmt::format(" {:.1f},{:.1f}", at, y);
    }
    add("<polyline points=\"{} {:.1f},{:.1f}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" "
        "stroke-linejoin=\"round\"/>\n",
        points, kRight, y, stroke(r), ranks <= 8 ? 1.6 : 1.1);
  }
  // The key: at most nine ranks, evenly chosen.
  const size_t shown = std::min<size_t>(ranks, 9);
  for (size_t i = 0; i < shown; ++i) {
    const size_t r = shown > 1 ? i * (ranks - 1) / (shown - 1) : 0;
    const double y = plot_top_ + 6 + 12.5 * double(i);
    add("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"2.5\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" font-size=\"11\">{}</text>\n",
        kRight + 8, y, kRight + 22, y, stroke(r), kRight + 27, y + 4, fmt::format("rank {}", r));
  }
  axis(plot_bottom_, false);
}

}  // namespace

std::string render_svg(const Simulation& simulation, const Schedule& schedule,
                       const RenderOptions& options) {
  const Timeline timeline = make_timeline(simulation, schedule, options.weight_memory);
  return Picture(timeline, schedule, options).draw();
}

}  // namespace pipetrain::schedule
