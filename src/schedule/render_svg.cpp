#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "pipetrain/schedule/render.h"
#include "schedule/render_timeline.h"

// A picture for papers: title, legend, a row per rank with warm-up, steady and cool-down marked by
// the ground, a time axis, and memory over time below.

namespace pipetrain::schedule {
namespace {

constexpr double width = 1000;
constexpr double left = 64;
constexpr double right = 20;
constexpr double plot_width = width - left - right;
constexpr double title_height = 62;
constexpr double axis_height = 34;
constexpr double memory_height = 110;
constexpr double memory_gap = 34;
constexpr double bottom = 30;
constexpr int most_axis_marks = 12;

// Okabe and Ito's palette, told apart with every kind of colour vision.
struct Colour {
  std::string_view fill;
  std::string_view name;
};
Colour colour_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return {"#0072b2", "forward"};
    case Kind::backward:
      return {"#d55e00", "backward"};
    case Kind::backward_input:
      return {"#e69f00", "input gradient"};
    default:
      return {"#009e73", "weight gradient"};
  }
}

constexpr std::string_view rank_colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                             "#e69f00", "#56b4e9", "#000000", "#999999"};

class Picture {
 public:
  Picture(const Timeline& timeline, const Schedule& schedule, const RenderOptions& options)
      : timeline_(timeline), schedule_(schedule), options_(options) {
    const double ranks = double(timeline.ranks.size());
    row_height_ = ranks <= 8 ? 34 : ranks <= 16 ? 26 : std::max(8.0, 416 / ranks);
    scale_ = timeline.length > 0 ? plot_width / timeline.length : 0;
    rows_end_ = title_height + ranks * row_height_;
    height_ = rows_end_ + axis_height + memory_gap + memory_height + bottom;
  }

  std::string draw() {
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:g} {:g}" )"
        R"(font-family="Helvetica, Arial, sans-serif" font-size="12">)",
        width, height_);
    put(R"(<rect width="{:g}" height="{:g}" fill="#ffffff"/>)", width, height_);
    title();
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      row(rank);
    }
    axis(rows_end_);
    memory();
    text_ += "</svg>\n";
    return text_;
  }

 private:
  template <typename... Arguments>
  void put(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }
  double x(double time) const { return left + time * scale_; }

  void title() {
    const std::string unit = options_.time_unit.empty() ? "" : " " + options_.time_unit;
    put(R"(<text x="{:g}" y="22" font-size="16" font-weight="bold">{}</text>)", left,
        schedule_.name);
    put(R"(<text x="{:g}" y="22" text-anchor="end" fill="#555555">{}; {}{} per step, bubble )"
        R"({:.1f}%</text>)",
        width - right, picture_subtitle(schedule_), short_number(timeline_.length), unit,
        100 * timeline_.bubble);
    legend();
  }

  void legend() {
    double at = left;
    const auto entry = [&](std::string_view fill, std::string_view name, double opacity) {
      put(R"(<rect x="{:g}" y="37" width="14" height="14" rx="2" fill="{}" fill-opacity="{:g}"/>)",
          at, fill, opacity);
      put(R"(<text x="{:g}" y="48">{}</text>)", at + 20, name);
      at += 44 + 6.4 * double(name.size());
    };
    entry(colour_of(Kind::forward).fill, colour_of(Kind::forward).name, 1);
    if (timeline_.whole_backward) {
      entry(colour_of(Kind::backward).fill, colour_of(Kind::backward).name, 1);
    }
    if (timeline_.split_backward) {
      for (const Kind kind : {Kind::backward_input, Kind::backward_weight}) {
        entry(colour_of(kind).fill, colour_of(kind).name, 1);
      }
    }
    if (timeline_.chunks > 1) {
      const bool mirrored = schedule_.placement.kind() == Placement::Kind::mirrored;
      entry("#777777", mirrored ? "lighter: the other direction" : "lighter: later chunks", 0.5);
    }
    entry("#f2efe6", "warm-up and cool-down", 1);
  }

  // Later chunks are lighter, so that the chunks of a rank can be told apart.
  double opacity(int chunk) const {
    return timeline_.chunks < 2 ? 1 : 1 - 0.55 * chunk / (timeline_.chunks - 1);
  }

  void row(size_t index) {
    const RankTimeline& rank = timeline_.ranks[index];
    const double top = title_height + double(index) * row_height_;
    put(R"(<text x="{:g}" y="{:g}" text-anchor="end" font-size="{:g}">rank {}</text>)", left - 8,
        top + row_height_ / 2 + 4, std::min(12.0, row_height_ - 1), index);
    put(R"(<rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" fill="#fafafa"/>)", left, top + 1,
        plot_width, row_height_ - 2);
    ground(rank, top);
    for (const Block& block : rank.blocks) {
      draw_block(block, top);
    }
  }

  void ground(const RankTimeline& rank, double top) {
    if (rank.blocks.empty()) {
      return;
    }
    const auto shade = [&](double begin, double end) {
      if (end > begin) {
        put(R"(<rect x="{:.2f}" y="{:g}" width="{:.2f}" height="{:g}" fill="#f2efe6"/>)", x(begin),
            top + 1, (end - begin) * scale_, row_height_ - 2);
      }
    };
    shade(0, std::min(rank.steady_begin, timeline_.length));
    shade(std::max(rank.cooldown_begin, std::min(rank.steady_begin, timeline_.length)),
          timeline_.length);
  }

  void draw_block(const Block& block, double top) {
    constexpr double gap = 0.6;
    const bool pair = block.lane != Lane::whole;
    const double inner = row_height_ - 6;
    const double y = top + 3 + (block.lane == Lane::second_of_pair ? inner / 2 : 0);
    const double tall = pair ? inner / 2 : inner;
    const double wide = std::max((block.end - block.start) * scale_ - gap, 0.3);
    const double shade = opacity(block.chunk);
    put(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" rx="{:g}" fill="{}" )"
        R"(fill-opacity="{:.2f}"><title>{}: {} to {}</title></rect>)",
        x(block.start), y, wide, tall, wide > 6 ? 1.5 : 0, colour_of(block.action.kind).fill, shade,
        to_string(block.action), short_number(block.start), short_number(block.end));
    const std::string number = std::to_string(block.action.microbatch);
    const double size = std::min(11.0, tall - 2);
    if (size >= 6 && wide > 0.62 * size * double(number.size()) + 2) {
      put(R"(<text x="{:.2f}" y="{:.2f}" text-anchor="middle" font-size="{:g}" fill="{}">{}</text>)",
          x(block.start) + wide / 2, y + tall / 2 + size * 0.36, size,
          shade > 0.7 ? "#ffffff" : "#1a1a1a", number);
    }
  }

  void axis(double y) {
    put(R"(<line x1="{:g}" y1="{:g}" x2="{:g}" y2="{:g}" stroke="#888888"/>)", left, y + 4,
        width - right, y + 4);
    if (timeline_.length <= 0) {
      return;
    }
    const double step = axis_step(timeline_.length, most_axis_marks);
    for (int mark = 0; mark * step <= timeline_.length * (1 + 1e-9); ++mark) {
      const double at = x(mark * step);
      put(R"(<line x1="{:.2f}" y1="{:g}" x2="{:.2f}" y2="{:g}" stroke="#888888"/>)", at, y + 4, at,
          y + 9);
      put(R"(<text x="{:.2f}" y="{:g}" text-anchor="middle" font-size="11" fill="#555555">{}</text>)",
          at, y + 22, short_number(mark * step));
    }
    put(R"(<text x="{:g}" y="{:g}" text-anchor="end" font-size="11" fill="#555555">time{}</text>)",
        left - 8, y + 22, options_.time_unit.empty() ? std::string() : ", " + options_.time_unit);
  }

  void memory() {
    double peak = 0;
    for (const RankTimeline& rank : timeline_.ranks) {
      peak = std::max(peak, rank.peak);
    }
    const double top = rows_end_ + axis_height + memory_gap;
    put(R"(<text x="{:g}" y="{:g}" fill="#555555">live activations per rank, in micro-batches of )"
        R"(a rank's share; peak {}</text>)",
        left, top - 12, short_number(peak));
    if (peak <= 0) {
      return;
    }
    const auto y = [&](double held) { return top + memory_height * (1 - held / (peak * 1.05)); };
    const double step = axis_step(peak, 4);
    for (int mark = 0; mark * step <= peak * (1 + 1e-9); ++mark) {
      put(R"(<line x1="{:g}" y1="{:.2f}" x2="{:g}" y2="{:.2f}" stroke="#e4e4e4"/>)", left,
          y(mark * step), width - right, y(mark * step));
      put(R"(<text x="{:g}" y="{:.2f}" text-anchor="end" font-size="11" fill="#555555">{}</text>)",
          left - 8, y(mark * step) + 4, short_number(mark * step));
    }
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      curve(rank, y);
    }
  }

  template <typename Y>
  void curve(size_t index, const Y& y) {
    const size_t ranks = timeline_.ranks.size();
    // Few ranks have a colour each; many are shaded from the first to the last.
    const std::string colour =
        ranks <= std::size(rank_colours)
            ? std::string(rank_colours[index])
            : fmt::format("hsl({}, 60%, 45%)", int(210 - 180 * index / (ranks - 1)));
    std::string points = fmt::format("{:.2f},{:.2f}", x(0), y(0));
    double held = 0;
    for (const MemoryStep& step : timeline_.ranks[index].memory) {
      fmt::format_to(std::back_inserter(points), " {:.2f},{:.2f} {:.2f},{:.2f}", x(step.time),
                     y(held), x(step.time), y(step.held));
      held = step.held;
    }
    put(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="1.3"><title>rank {}</title>)"
        R"(</polyline>)",
        points, colour, index);
    if (ranks <= std::size(rank_colours)) {
      put(R"(<text x="{:.2f}" y="{:g}" font-size="11" fill="{}">rank {}</text>)",
          left + 52 * double(index), height_ - 8, colour, index);
    }
  }

  const Timeline& timeline_;
  const Schedule& schedule_;
  const RenderOptions& options_;
  double row_height_ = 0;
  double scale_ = 0;
  double rows_end_ = 0;
  double height_ = 0;
  std::string text_;
};

}  // namespace

std::string render_svg(const Simulation& simulation, const Schedule& schedule,
                       const RenderOptions& options) {
  const Timeline timeline = make_timeline(simulation, schedule, options.weight_memory);
  return Picture(timeline, schedule, options).draw();
}

}  // namespace pipetrain::schedule
