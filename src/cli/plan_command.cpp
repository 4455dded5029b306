#include <fmt/format.h>

#include <CLI/App.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/colour.h"
#include "cli/command.h"
#include "cli/plan.h"
#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/render.h"

namespace pipetrain {
namespace {

void add_flags(CLI::App& app, PlanOptions& options) {
  app.add_option("--schedule", options.schedule, "name of a schedule, csv:FILE, or all")
      ->required();
  app.add_option("--ranks", options.ranks, "pipeline ranks p");
  app.add_option("--microbatches", options.microbatches, "micro-batches per step m");
  app.add_option("--chunks", options.chunks, "chunks per rank v; default: the schedule's own");
  app.add_option("--group", options.group, "interleaved: group N; default min(p, m)");
  app.add_option("--forward", options.costs.forward,
                 "time of F of one rank's whole share; a comma list gives one value per rank")
      ->delimiter(',');
  app.add_option("--backward-input", options.costs.backward_input, "time of the input gradient")
      ->delimiter(',');
  app.add_option("--backward-weight", options.costs.backward_weight, "time of the weight gradient")
      ->delimiter(',');
  app.add_option("--overlapped", options.costs.overlapped,
                 "time of an overlapped F&B pair; default F+B+W")
      ->delimiter(',');
  app.add_option("--latency", options.costs.latency, "latency of one hop");
  app.add_option("--bytes", options.bytes, "bytes per hand-off; with --bandwidth");
  app.add_option("--bandwidth", options.bandwidth, "bytes per unit of time; with --bytes");
  app.add_option("--activation-limit", options.activation_limit,
                 "per rank, in micro-batches of one rank's share")
      ->delimiter(',');
  app.add_option("--weight-memory", options.costs.weight_memory,
                 "what is held between I and W, in activations");
  app.add_flag("--lowered", options.lowered, "with the communication");
  app.add_option("--format", options.format, "table, json, csv, ascii, svg or trace");
  app.add_option("--output", options.output, "file; default: standard output");
}

void write_output(const std::string& text, const std::string& path) {
  if (path.empty()) {
    fmt::print("{}", text);
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    throw UsageError(fmt::format("--output {}: cannot be written", path));
  }
}

std::string in_format(const std::vector<Plan>& plans, const PlanOptions& options) {
  if (options.format == "table") {
    return to_table(plans, options);
  }
  if (options.format == "json") {
    return to_json(plans, options.schedule == "all");
  }
  std::string text;
  const bool terminal = options.output.empty() && wants_colour();
  const schedule::RenderOptions render = {.width = 80,
                                          .colour = terminal,
                                          .weight_memory = options.costs.weight_memory,
                                          .time_unit = ""};
  if (plans.size() != 1 && options.format != "ascii") {
    throw UsageError(
        fmt::format("--format {} shows one schedule; --schedule all needs table, json "
                    "or ascii",
                    options.format));
  }
  for (const Plan& plan : plans) {
    if (options.format == "ascii") {
      text += (text.empty() ? "" : "\n") + render_ascii(plan.simulation, plan.schedule, render);
    } else if (options.format == "svg") {
      text += render_svg(plan.simulation, plan.schedule, render);
    } else if (options.format == "trace") {
      text += render_chrome_trace(plan.simulation, plan.schedule, render);
    } else {
      text += options.lowered ? to_csv(schedule::lower(plan.schedule)) : to_csv(plan.schedule);
    }
  }
  return text;
}

}  // namespace

Command add_plan(CLI::App& main) {
  CLI::App* app = main.add_subcommand(
      "plan", "Simulates, compares and draws schedules; needs no GPU and no MPI");
  const auto options = std::make_shared<PlanOptions>();
  add_flags(*app, *options);
  return {app, [options] {
            options->check();
            const std::vector<Plan> plans = make_plans(*options);
            write_output(in_format(plans, *options), options->output);
            return 0;
          }};
}

}  // namespace pipetrain
