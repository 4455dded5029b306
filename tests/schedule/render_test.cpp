#include "pipetrain/schedule/render.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "support.h"

namespace pipetrain::schedule {
namespace {

struct Drawn {
  Schedule schedule;
  Simulation simulation;
};

Drawn drawn(const std::string& name, int ranks, int microbatches, int chunks = 0) {
  Schedule schedule = generate(request(name, ranks, microbatches, chunks));
  Simulation simulation = simulate(schedule, times(1, 1, 1));
  return {std::move(schedule), std::move(simulation)};
}

std::string ascii(const Drawn& picture, const RenderOptions& options = {}) {
  return render_ascii(picture.simulation, picture.schedule, options);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

// Without ANSI sequences.
std::string plain(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      result += text[i];
    }
  }
  return result;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(RenderAscii, OneForwardOneBackwardIsDrawnAsInTheTextbook) {
  EXPECT_EQ(ascii(drawn("1f1b", 4, 4)),
            "1f1b: 4 ranks, 4 micro-batches\n"
            "21 for a step, bubble 42.9%\n"
            "rank                                                               idle peak\n"
            "0 |F0-F1-F2-F3-                  B0----   B1----   B2----   B3----| 43%    4\n"
            "1 |   F0-F1-F2-            B0----F3-B1----   B2----   B3----      | 43%    3\n"
            "2 |      F0-F1-      B0----F2-B1----F3-B2----   B3----            | 43%    2\n"
            "3 |         F0-B0----F1-B1----F2-B2----F3-B3----                  | 43%    1\n"
            "   |0             |5             |10            |15            |20\n"
            "F forward   B backward\n");
}

TEST(RenderAscii, EveryLineFitsTheWidth) {
  for (const std::string& name : schedule_names()) {
    for (const auto& [ranks, microbatches] : {std::pair(4, 8), {16, 32}, {2, 100}}) {
      const Drawn picture = drawn(name, ranks, microbatches);
      for (const int width : {40, 80, 120}) {
        for (const bool colour : {false, true}) {
          RenderOptions options;
          options.width = width;
          options.colour = colour;
          for (const std::string& line : lines_of(ascii(picture, options))) {
            // Legends and titles are as long as they are; rows and axis obey any width.
            const bool row = line.find('|') != std::string::npos || width >= 80;
            EXPECT_TRUE(!row || int(plain(line).size()) <= width)
                << name << " p=" << ranks << " m=" << microbatches << ": " << plain(line);
          }
        }
      }
    }
  }
}

TEST(RenderAscii, ColoursOnlyWhenAsked) {
  const Drawn picture = drawn("zb-v", 4, 8);
  EXPECT_EQ(ascii(picture).find('\x1b'), std::string::npos);
  RenderOptions options;
  options.colour = true;
  const std::string coloured = ascii(picture, options);
  EXPECT_NE(coloured.find('\x1b'), std::string::npos);
  for (const std::string& line : lines_of(coloured)) {
    const size_t last = line.rfind("\x1b[");
    EXPECT_TRUE(last == std::string::npos || line.compare(last, 4, "\x1b[0m") == 0)
        << "colours run on after: " << plain(line);
  }
}

TEST(RenderAscii, ShowsIdleTimeAndPeakOfEveryRank) {
  const std::vector<std::string> lines = lines_of(ascii(drawn("1f1b", 4, 8)));
  for (int rank = 0; rank < 4; ++rank) {
    const std::string& line = lines[size_t(3 + rank)];
    EXPECT_NE(line.find("27%"), std::string::npos) << line;
    EXPECT_EQ(line.back(), char('4' - rank)) << line;
  }
}

TEST(RenderAscii, WideColumnsKeepKindsInProportion) {
  const std::vector<std::string> lines = lines_of(ascii(drawn("1f1b", 16, 64)));
  for (int rank = 0; rank < 16; ++rank) {
    const std::string& line = lines[size_t(3 + rank)];
    const int forwards = count(line, "F");
    const int backwards = count(line, "B");
    EXPECT_NEAR(backwards, 2 * forwards, 3) << line;  // F = 1, B + W = 2
  }
}

TEST(RenderAscii, DrawsMeasuredIntervalsFromAnyOrigin) {
  Drawn picture = drawn("1f1b", 2, 4);
  Simulation measured;
  for (const RankResult& rank : picture.simulation.ranks) {
    RankResult& shifted = measured.ranks.emplace_back();
    for (Interval interval : rank.intervals) {
      interval.start += 1000;
      interval.end += 1000;
      shifted.intervals.push_back(interval);
    }
  }
  EXPECT_EQ(render_ascii(measured, picture.schedule), ascii(picture));
}

TEST(RenderAscii, WeightMemoryCountsInThePeak) {
  const Drawn picture = drawn("zb-h2", 4, 8);
  RenderOptions heavy;
  heavy.weight_memory = 2;
  EXPECT_NE(ascii(picture), ascii(picture, heavy));
}

// A reader of just enough XML to see that tags are closed and text is escaped.
void expect_well_formed(const std::string& text) {
  std::vector<std::string> open;
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const size_t end = text.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = text.substr(at + 1, end - at - 1);
    EXPECT_EQ(count(tag, "\"") % 2, 0) << tag;
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
}

TEST(RenderSvg, IsWellFormedForEverySchedule) {
  for (const std::string& name : schedule_names()) {
    for (const auto& [ranks, microbatches] : {std::pair(2, 4), {16, 32}}) {
      const Drawn picture = drawn(name, ranks, microbatches);
      expect_well_formed(render_svg(picture.simulation, picture.schedule));
    }
  }
}

TEST(RenderSvg, TextOfTheUserIsEscaped) {
  Drawn picture = drawn("1f1b", 2, 2);
  picture.schedule.name = "a<b>&c";
  RenderOptions options;
  options.time_unit = "<ms>";
  const std::string text = render_svg(picture.simulation, picture.schedule, options);
  expect_well_formed(text);
  EXPECT_NE(text.find("a&lt;b&gt;&amp;c"), std::string::npos);
}

TEST(RenderSvg, ShowsPhasesLegendNumbersAndMemory) {
  const Drawn picture = drawn("1f1b", 4, 8);
  const std::string text = render_svg(picture.simulation, picture.schedule);
  for (const char* part : {"warm-up", "steady", "cool-down", "forward", "backward", "rank 3",
                           "Activations held", "peak 4", "27% idle"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(text.find("weight gradient"), std::string::npos) << "1f1b has none";
  EXPECT_EQ(count(text, ">7</text>"), 8) << "micro-batch 7 on 4 ranks, forward and backward";
}

// Three points in one column would be a spike: memory given back and taken again at once.
TEST(RenderSvg, MemoryHasOneValueAtATime) {
  const Drawn picture = drawn("zb-v", 4, 8);
  const std::string text = render_svg(picture.simulation, picture.schedule);
  int curves = 0;
  for (size_t at = text.find("<polyline"); at != std::string::npos;
       at = text.find("<polyline", at + 1)) {
    const size_t begin = text.find("points=\"", at) + 8;
    std::istringstream points(text.substr(begin, text.find('"', begin) - begin));
    std::vector<std::string> columns;
    for (std::string point; points >> point;) {
      columns.push_back(point.substr(0, point.find(',')));
    }
    curves += columns.size() > 10;  // the others bound the phases
    for (size_t i = 2; i < columns.size() && columns[i] != columns.back(); ++i) {
      EXPECT_FALSE(columns[i] == columns[i - 1] && columns[i] == columns[i - 2]) << columns[i];
    }
  }
  EXPECT_EQ(curves, 4);
}

TEST(RenderSvg, OverlappedPairsShareTheHeight) {
  const Drawn picture = drawn("dualpipe", 4, 8);
  const std::string text = render_svg(picture.simulation, picture.schedule);
  EXPECT_GT(count(text, "height=\"13.0\""), 0);
}

TEST(RenderChromeTrace, HoldsEveryComputationOfEveryRank) {
  const Drawn picture = drawn("zb-v", 4, 8);
  const auto trace =
      nlohmann::json::parse(render_chrome_trace(picture.simulation, picture.schedule));
  std::map<int, int> events;
  double last = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      ++events[event.at("tid").get<int>()];
      last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
    }
  }
  ASSERT_EQ(events.size(), 4u);
  for (const auto& [rank, number] : events) {
    EXPECT_EQ(number, 8 * 2 * 3) << rank;
  }
  EXPECT_NEAR(last, 1000 * picture.simulation.makespan, 1e-6);
}

// As measured: the parts of a pair neither begin nor end together.
TEST(RenderChromeTrace, EventsOfAThreadDoNotOverlap) {
  Drawn picture = drawn("dualpipe", 4, 8);
  for (RankResult& rank : picture.simulation.ranks) {
    for (Interval& interval : rank.intervals) {
      const double shift = interval.action.kind == Kind::forward ? 0.1 : 0.2;
      interval.start += shift / 2;
      interval.end -= 0.3 - shift;
    }
  }
  const auto trace =
      nlohmann::json::parse(render_chrome_trace(picture.simulation, picture.schedule));
  std::map<int, std::map<double, double>> events;  // by thread: start, end
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      const double start = event.at("ts");
      events[event.at("tid")][start] = start + event.at("dur").get<double>();
    }
  }
  EXPECT_EQ(events.size(), 8u);
  for (const auto& [thread, intervals] : events) {
    double end = 0;
    for (const auto& [start, its_end] : intervals) {
      EXPECT_GE(start, end) << "thread " << thread;
      end = its_end;
    }
  }
}

TEST(RenderChromeTrace, TransfersBeginAndEnd) {
  const LoweredSchedule lowered = lower(generate(request("1f1b", 4, 8)));
  Costs costs = times(1, 1, 1, 0.1);
  const Simulation simulation = simulate(lowered, costs);
  const auto trace =
      nlohmann::json::parse(render_chrome_trace(simulation, generate(request("1f1b", 4, 8))));
  std::map<std::string, int> phases;
  for (const auto& event : trace.at("traceEvents")) {
    ++phases[event.at("ph").get<std::string>()];
  }
  EXPECT_EQ(phases["b"], 2 * 3 * 8) << "forward and backward over 3 edges, 8 micro-batches";
  EXPECT_EQ(phases["e"], phases["b"]);
}

}  // namespace
}  // namespace pipetrain::schedule
