#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "pipetrain/schedule/render.h"
#include "schedule/render_timeline.h"

// Trace Event Format: complete events ("X") with microsecond times, a counter per rank, names of
// threads as metadata. One unit of time is written as a millisecond. Events of a thread must not
// overlap without nesting, so the F of overlapped pairs has a thread of its own.

namespace pipetrain::schedule {
namespace {

constexpr double microseconds_per_unit = 1000;
constexpr int compute_process = 1;
constexpr int transfer_process = 2;

class Events {
 public:
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += text_.empty() ? "" : ",\n";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }
  std::string finish() const { return "{\"traceEvents\": [\n" + text_ + "\n]}\n"; }

 private:
  std::string text_;
};

const char* colour_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return "rail_response";
    case Kind::backward:
    case Kind::backward_input:
      return "rail_animation";
    default:
      return "rail_load";
  }
}

void add_process(Events& events, int process, const char* name) {
  events.add(R"({{"ph": "M", "pid": {}, "name": "process_name", "args": {{"name": "{}"}}}})",
             process, name);
}

void add_thread(Events& events, size_t thread, const std::string& name, size_t row) {
  events.add(
      R"({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_name", "args": {{"name": "{}"}}}})",
      compute_process, thread, name);
  events.add(
      R"({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_sort_index", "args": {{"sort_index": {}}}}})",
      compute_process, thread, row);
}

void add_block(Events& events, size_t thread, const Block& block) {
  const Action& action = block.action;
  events.add(
      R"({{"ph": "X", "pid": {}, "tid": {}, "ts": {}, "dur": {}, "name": "{}", "cname": "{}", )"
      R"("args": {{"stage": {}, "microbatch": {}}}}})",
      compute_process, thread, block.start * microseconds_per_unit,
      (block.end - block.start) * microseconds_per_unit, to_string(action), colour_of(action.kind),
      action.stage, action.microbatch);
}

bool runs_beside(const Block& block) {
  return block.lane != Lane::whole && block.action.kind == Kind::forward;
}

}  // namespace

std::string render_chrome_trace(const Simulation& simulation, const Schedule& schedule,
                                const RenderOptions& options) {
  const Timeline timeline = make_timeline(simulation, schedule, options.weight_memory);
  Events events;
  add_process(events, compute_process, schedule.name.c_str());
  const size_t ranks = timeline.ranks.size();
  for (size_t rank = 0; rank < ranks; ++rank) {
    const std::vector<Block>& blocks = timeline.ranks[rank].blocks;
    add_thread(events, rank, fmt::format("rank {}", rank), 2 * rank);
    if (std::any_of(blocks.begin(), blocks.end(), runs_beside)) {
      add_thread(events, ranks + rank, fmt::format("rank {}, beside", rank), 2 * rank + 1);
    }
    for (const Block& block : blocks) {
      add_block(events, runs_beside(block) ? ranks + rank : rank, block);
    }
    for (const MemoryStep& step : timeline.ranks[rank].memory) {
      events.add(R"({{"ph": "C", "pid": {}, "ts": {}, "name": "activations of rank {}", )"
                 R"("args": {{"held": {}}}}})",
                 compute_process, step.time * microseconds_per_unit, rank, step.held);
    }
  }
  if (!simulation.transfers.empty()) {
    add_process(events, transfer_process, "transfers");
  }
  for (const Interval& transfer : simulation.transfers) {
    const Action& action = transfer.action;
    const int rank = schedule.placement.owner(action.stage, action.microbatch);
    // Transfers of a rank may overlap without nesting, so they are asynchronous events.
    for (const auto& [phase, time] : {std::pair("b", transfer.start), {"e", transfer.end}}) {
      events.add(
          R"({{"ph": "{0}", "cat": "transfer", "id": "{1}", "pid": {2}, "tid": {3}, "ts": {4}, )"
          R"("name": "{1}"}})",
          phase, to_string(action), transfer_process, rank,
          (time - timeline.first_start) * microseconds_per_unit);
    }
  }
  return events.finish();
}

}  // namespace pipetrain::schedule
