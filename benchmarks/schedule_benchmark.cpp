// How the schedule layer scales: generate, validate, simulate, lower and search over the number of
// actions.

#include <benchmark/benchmark.h>

#include <optional>
#include <utility>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/search.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/schedule/validate.h"

namespace pipetrain::schedule {
namespace {

// Arguments: ranks, chunks, micro-batches.
Request asked(const char* name, const benchmark::State& state) {
  Request request;
  request.name = name;
  request.ranks = int(state.range(0));
  request.chunks = int(state.range(1));
  request.microbatches = int(state.range(2));
  return request;
}

void count_actions(benchmark::State& state, const Schedule& schedule) {
  int64_t actions = 0;
  for (const std::vector<Action>& list : schedule.ranks) {
    actions += int64_t(list.size());
  }
  state.SetComplexityN(actions);
  state.SetItemsProcessed(state.iterations() * actions);
}

void generate_schedule(benchmark::State& state, const char* name) {
  const Request request = asked(name, state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(generate(request));
  }
  count_actions(state, generate(request));
}

void validate_schedule(benchmark::State& state, const char* name) {
  const Schedule schedule = generate(asked(name, state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(validate(schedule));
  }
  count_actions(state, schedule);
}

void simulate_schedule(benchmark::State& state, const char* name) {
  const Schedule schedule = generate(asked(name, state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(simulate(schedule, {}));
  }
  count_actions(state, schedule);
}

void lower_schedule(benchmark::State& state, const char* name) {
  const Schedule schedule = generate(asked(name, state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(lower(schedule));
  }
  count_actions(state, schedule);
}

void simulate_lowered(benchmark::State& state, const char* name) {
  const Schedule schedule = generate(asked(name, state));
  const LoweredSchedule lowered = lower(schedule);
  for (auto _ : state) {
    benchmark::DoNotOptimize(simulate(lowered, {}));
  }
  count_actions(state, schedule);
}

// At most `chunks` per rank, on a loop and on a V, in the memory of 1f1b.
void search_schedule(benchmark::State& state) {
  SearchRequest request;
  request.ranks = int(state.range(0));
  request.max_chunks = int(state.range(1));
  request.microbatches = int(state.range(2));
  request.activation_limit = {double(request.ranks)};
  request.allow_v = true;
  std::optional<SearchResult> result;
  for (auto _ : state) {
    result = search(request);
  }
  count_actions(state, result->schedule);
}

void sizes(benchmark::internal::Benchmark* bench, int chunks) {
  bench->ArgNames({"p", "v", "m"})->Unit(benchmark::kMillisecond);
  for (const int microbatches : {64, 256, 1024}) {
    bench->Args({64, chunks, microbatches});
  }
  bench->Complexity();
}

void searched_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"p", "v", "m"})->Unit(benchmark::kMillisecond)->Iterations(1);
  for (const auto& [ranks, microbatches] : {std::pair(4, 8), {8, 32}, {16, 64}, {64, 256}}) {
    bench->Args({ranks, 1, microbatches});
  }
  bench->Complexity();
}

void one_chunk(benchmark::internal::Benchmark* bench) {
  sizes(bench, 1);
}
void two_chunks(benchmark::internal::Benchmark* bench) {
  sizes(bench, 2);
}
void eight_chunks(benchmark::internal::Benchmark* bench) {
  sizes(bench, 8);
}

BENCHMARK_CAPTURE(generate_schedule, interleaved, "interleaved")->Apply(eight_chunks);
BENCHMARK_CAPTURE(generate_schedule, v_half, "v-half")->Apply(two_chunks);
BENCHMARK_CAPTURE(validate_schedule, interleaved, "interleaved")->Apply(eight_chunks);
BENCHMARK_CAPTURE(simulate_schedule, interleaved, "interleaved")->Apply(eight_chunks);
BENCHMARK_CAPTURE(simulate_schedule, zb_h1, "zb-h1")->Apply(one_chunk);
BENCHMARK_CAPTURE(lower_schedule, interleaved, "interleaved")->Apply(eight_chunks);
BENCHMARK_CAPTURE(lower_schedule, zb_h1, "zb-h1")->Apply(one_chunk);
BENCHMARK_CAPTURE(simulate_lowered, interleaved, "interleaved")->Apply(eight_chunks);
BENCHMARK(search_schedule)->Apply(searched_sizes);

}  // namespace
}  // namespace pipetrain::schedule
