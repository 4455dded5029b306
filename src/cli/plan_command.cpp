#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cli/colour.h"
#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/plan.h"
#include "cli/plan_text.h"
#include "cli/train_flags.h"
#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/render.h"

namespace pipetrain {
namespace {

void add_schedule_flags(CLI::App& app, PlanOptions& options) {
  app.add_option("--schedule", options.schedule,
                 "name of a schedule, auto, csv:FILE, or all to compare them")
      ->required();
  app.add_option("--ranks", options.ranks, "pipeline ranks p")->capture_default_str();
  app.add_option("--microbatches", options.microbatches, "micro-batches per step m")
      ->capture_default_str();
  app.add_option("--chunks", options.chunks,
                 "chunks per rank v; default: the schedule's own. auto: up to so many; 1: no V");
  app.add_option("--group", options.group, "interleaved: group N; default min(p, m)");
  app.add_option("--activation-limit", options.activation_limit,
                 "per rank, in micro-batches of one rank's share")
      ->delimiter(',');
  app.add_option("--weight-memory", options.costs.weight_memory,
                 "what is held between I and W, in activations; default 1, or what a model's slots "
                 "hold");
  app.add_option("--objective", options.objective,
                 "auto and all: makespan (synchronous optimizer) or span")
      ->capture_default_str();
  app.add_flag("--lowered", options.lowered,
               "simulate and write the communication too; with model flags it is always simulated");
  app.add_option("--format", options.format, "table, json, csv, ascii, svg or trace")
      ->capture_default_str();
  app.add_option("--output", options.output, "file; default: standard output");
}

void add_time_flags(CLI::App& app, PlanOptions& options) {
  app.add_option("--latency", options.costs.latency,
                 "latency of one hop; with model flags in ms, default: the link's");
  app.add_option("--bandwidth", options.bandwidth,
                 "bytes per unit of time; with model flags per ms, default: the link's");
  app.add_option("--forward", options.costs.forward,
                 "time of F of one rank's whole share; a comma list gives one per rank")
      ->delimiter(',');
  app.add_option("--backward-input", options.costs.backward_input, "time of the input gradient")
      ->delimiter(',');
  app.add_option("--backward-weight", options.costs.backward_weight, "time of the weight gradient")
      ->delimiter(',');
  app.add_option("--overlapped", options.costs.overlapped,
                 "time of an overlapped F&B pair, where the schedule has some; default F+B+W")
      ->delimiter(',');
  app.add_option("--bytes", options.bytes, "bytes per hand-off; with --bandwidth");
}

void add_model_flags(CLI::App& app, PlanModel& model) {
  app.add_option("--model", model.model, "gpt2-124m, gpt2-350m, gpt2-774m or gpt2-1558m");
  app.add_option("--layers", model.layers, "layers L; a model predicts memory and step time");
  app.add_option("--hidden", model.hidden, "width C");
  app.add_option("--heads", model.heads, "attention heads");
  app.add_option("--vocab-size", model.vocab_size, "vocabulary; default 50257, or the --model's");
  app.add_option("--sequence-length", model.sequence_length,
                 "tokens per sequence T; default: the --model's");
  app.add_option("--microbatch-size", model.microbatch_size,
                 "sequences per micro-batch; default 1");
  app.add_option("--layers-per-stage", model.layers_per_stage, "layers of each stage: 3,4,4,3")
      ->delimiter(',');
  app.add_option("--precision", model.precision, "fp32 or bf16")->capture_default_str();
  add_slot_flags(app, model.slots);
  app.add_option("--memory-limit", model.memory_limit, "GiB per rank; default: the device's");
  app.add_option("--device", model.device, "h100, h200 or a100")->capture_default_str();
  app.add_option("--link", model.link, "nvlink, pcie4, pcie5 or ib400")->capture_default_str();
}

// Of one plan; several are compared.
void warn_of_few_microbatches(const std::vector<Plan>& plans) {
  const schedule::Placement& placement = plans.front().schedule.placement;
  const double bubble = plans.front().simulation.bubble_fraction();
  if (plans.size() == 1 && bubble >= 0.2 && placement.microbatches() < 4 * placement.ranks()) {
    fmt::print(stderr,
               "pipetrain: warning: {} micro-batches are few for {} ranks: the bubble is {:.1f}%; "
               "of 1f1b at equal times it is below 20% from 4 per rank on\n",
               placement.microbatches(), placement.ranks(), 100 * bubble);
  }
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
    return to_json(plans, options);
  }
  std::string text;
  const bool terminal = options.output.empty() && wants_colour();
  for (const Plan& plan : plans) {
    const schedule::RenderOptions render = {
        .width = 80, .colour = terminal, .weight_memory = plan.weight_memory, .time_unit = ""};
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
  add_schedule_flags(*app, *options);
  add_time_flags(*app, *options);
  add_model_flags(*app, options->model);
  return {app, [app, options, &main] {
            for (const CLI::Option* option :
                 app->get_options([](const CLI::Option* flag) { return flag->count() > 0; })) {
              options->given.push_back(option->get_name());
            }
            options->config_file = given_config_file(main);
            options->adopt_file();
            options->check();
            const std::vector<Plan> plans = make_plans(*options);
            warn_of_few_microbatches(plans);
            write_output(in_format(plans, *options), options->output);
            return 0;
          }};
}

}  // namespace pipetrain
