#pragma once

#include <string>

#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain::schedule {

struct RenderOptions {
  int width = 80;            // ascii: columns of the terminal, at least 40
  bool colour = false;       // ascii: ANSI colours; the caller asks isatty
  double weight_memory = 1;  // what is held between I and W, in activations, as in Costs
  std::string time_unit;     // written after times: "ms"
};

// Draw a step: a row per rank, time from left to right. Only the intervals of `simulation` are
// read, so a measured step is drawn the same way as a simulated one: intervals in list order, any
// origin of time. `schedule` gives the name and the placement. Memory is counted in rank shares: a
// chunk is 1/v.

// Plain text (with ANSI colours where asked), every line at most `width` columns. Where an action
// would be narrower than one column, a column shows what ran for the largest part of it.
std::string render_ascii(const Simulation& simulation, const Schedule& schedule,
                         const RenderOptions& options = {});

// A picture for papers and READMEs: legend, time axis, warm-up, steady and cool-down of every rank,
// micro-batch numbers where they fit, and memory over time below.
std::string render_svg(const Simulation& simulation, const Schedule& schedule,
                       const RenderOptions& options = {});

// Trace Event Format (JSON) for chrome://tracing and Perfetto: a thread per rank, a counter of live
// activations per rank, transfers where the simulation has them. One unit of time is written as
// one millisecond.
std::string render_chrome_trace(const Simulation& simulation, const Schedule& schedule,
                                const RenderOptions& options = {});

}  // namespace pipetrain::schedule
