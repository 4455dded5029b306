#include "pipetrain/schedule/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "pipetrain/error.h"
#include "pipetrain/progress.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "schedule/search_block.h"
#include "schedule/search_moves.h"
#include "schedule/search_policy.h"
#include "schedule/search_problem.h"

namespace pipetrain::schedule {
namespace {

// Trials of policies per placement; on the V a sixth as many building blocks. One run of list
// scheduling takes about 60 ns per letter and one move about 5 ns, and the longer the words are the
// less a single move helps: 1 to 3 s of one core up to 10,000 letters, 2 s at 100,000.
size_t policy_runs(const Problem& problem, double effort) {
  return size_t(effort *
                std::clamp(8e7 / std::pow(double(problem.letters()), 1.1), 45.0, 12000.0)) +
         1;
}

size_t moves_in_all(const Problem& problem, double effort) {
  return size_t(effort * std::min(2.5e10 / std::pow(double(problem.letters()), 1.5), 1e6)) + 1;
}

constexpr size_t kPool = 6;

// One placement and what was found for it, the best first.
struct Option {
  Problem problem;
  std::vector<Candidate> fixed;     // the schedules of the literature that fit
  std::vector<Candidate> explored;  // the pool before its letters were moved
  std::vector<Candidate> pool;
};

Option explore(const SearchRequest& request, Placement::Kind kind, int chunks, double effort) {
  Option option{Problem(request, kind, chunks), {}, {}, {}};
  const Problem& problem = option.problem;
  SearchRequest unlimited = request;
  unlimited.activation_limit.clear();
  const Problem without_limit(unlimited, kind, chunks);
  Evaluator evaluator(problem);
  std::vector<Words> sources;
  for (const Schedule& schedule : fixed_schedules(problem.placement)) {
    Words words = to_words(problem, schedule);
    if (!words.empty()) {
      const Cost cost = evaluator.run(words);
      option.fixed.push_back({std::move(words), cost, schedule.name});
    }
    words = to_words(without_limit, schedule);
    if (!words.empty()) {
      sources.push_back(std::move(words));
    }
  }
  option.pool = option.fixed;
  constexpr size_t kRounds = 3;
  const size_t runs = policy_runs(problem, effort) / kRounds;
  if (kind == Placement::Kind::v) {
    Candidate block = search_blocks(problem, runs / 2, 1);
    if (!block.words.empty()) {
      option.pool.push_back(std::move(block));
    }
  }
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<Candidate> found = search_policies(problem, sources, runs, round + 1);
    std::move(found.begin(), found.end(), std::back_inserter(option.pool));
    best_first(option.pool, kPool);
    if (!option.pool.empty()) {
      sources.push_back(option.pool.front().words);
    }
  }
  option.explored = option.pool;
  return option;
}

// Moves letters of the whole pool, then of ever fewer for longer.
void refine(Option& option, double effort) {
  const size_t moves = moves_in_all(option.problem, effort);
  std::uint64_t seed = 1;
  for (const size_t keep : {kPool, kPool / 2, size_t{1}}) {
    best_first(option.pool, keep);
    for (Candidate& candidate : option.pool) {
      candidate = anneal(option.problem, candidate, moves / 3 / option.pool.size(), seed++);
    }
  }
}

double peak_memory(const Problem& problem, const Words& words) {
  double peak = 0;
  for (const Word& word : words) {
    double held = 0;
    for (const Letter& letter : word) {
      held += problem.memory(letter.step);
      peak = std::max(peak, held);
    }
  }
  return peak;
}

// What was found, or a schedule of the literature that is as good and holds less.
const Candidate& choice(const Option& option) {
  const Candidate* chosen = &option.pool.front();
  for (const Candidate& fixed : option.fixed) {
    if (!chosen->cost.better_than(fixed.cost) &&
        peak_memory(option.problem, fixed.words) < peak_memory(option.problem, chosen->words)) {
      chosen = &fixed;
    }
  }
  return *chosen;
}

double value_of(const Simulation& simulation, Objective objective) {
  return objective == Objective::span ? simulation.span : simulation.makespan;
}

// Messages, gates and slots only delay, so candidates that take as long without them as another
// does with them are not looked at.
SearchResult best_lowered(const std::vector<Option>& options, const SearchRequest& request) {
  struct Entry {
    const Problem* problem;
    const Candidate* candidate;
  };
  std::vector<Entry> entries;
  for (const Option& option : options) {
    for (const auto* candidates : {&option.pool, &option.explored, &option.fixed}) {
      for (const Candidate& candidate : *candidates) {
        entries.push_back({&option.problem, &candidate});
      }
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& x, const Entry& y) {
    return x.candidate->cost.objective < y.candidate->cost.objective;
  });
  std::optional<SearchResult> best;
  double least_memory = 0;
  constexpr double rounding = 1 + 1e-9;
  for (const Entry& entry : entries) {
    const double limit =
        best ? value_of(best->simulation, request.objective) : entry.candidate->cost.objective;
    if (entry.candidate->cost.objective > limit * rounding) {
      break;
    }
    report_progress();
    Schedule schedule = to_schedule(*entry.problem, entry.candidate->words);
    Simulation simulation = simulate(lower(schedule), request.costs);
    const double value = value_of(simulation, request.objective);
    const double memory = peak_memory(*entry.problem, entry.candidate->words);
    if (!best || value * rounding < limit || (value <= limit * rounding && memory < least_memory)) {
      best = {std::move(schedule), std::move(simulation), entry.candidate->origin};
      least_memory = memory;
    }
  }
  return std::move(best).value();
}

DoesNotFit does_not_fit(double limit) {
  return DoesNotFit(fmt::format(
      "--activation-limit {}: no schedule fits; a rank holds at least one micro-batch, which is 1",
      limit));
}

void check(const SearchRequest& request) {
  constexpr int kMostChunks = 64;
  if (request.max_chunks < 1 || request.max_chunks > kMostChunks) {
    throw UsageError(fmt::format("--chunks {}: the search takes 1 to {} chunks per rank",
                                 request.max_chunks, kMostChunks));
  }
  if (request.min_chunks < 1 || (request.min_chunks > request.max_chunks && !request.allow_v)) {
    throw InternalError(fmt::format("a search among loop placements of {} to {} chunks alone",
                                    request.min_chunks, request.max_chunks));
  }
  const std::vector<double>& limits = request.activation_limit;
  if (limits.size() > 1 && limits.size() != size_t(request.ranks)) {
    throw UsageError(fmt::format("--activation-limit has {} values; one or --ranks {} are allowed",
                                 limits.size(), request.ranks));
  }
  if (!(request.costs.weight_memory >= 0)) {
    throw UsageError(
        fmt::format("--weight-memory {}: it must be 0 or more", request.costs.weight_memory));
  }
  for (const double limit : limits) {
    if (!(limit >= 1)) {
      throw does_not_fit(limit);
    }
  }
}

}  // namespace

std::vector<Schedule> fixed_schedules(const Placement& placement) {
  std::vector<Schedule> schedules;
  for (const std::string& name : schedule_names()) {
    for (const int chunks : {0, placement.chunks()}) {
      try {
        Schedule schedule =
            generate({name, placement.ranks(), placement.microbatches(), chunks, 0});
        if (schedule.placement.kind() == placement.kind() &&
            schedule.placement.chunks() == placement.chunks() && schedule.update == Update::step) {
          schedules.push_back(std::move(schedule));
          break;
        }
      } catch (const UsageError&) {
        // This schedule refuses these numbers.
      }
    }
  }
  return schedules;
}

SearchResult search(const SearchRequest& request) {
  check(request);
  // Checks counts and times.
  simulate(generate({"1f1b", request.ranks, request.microbatches, 0, 0}), request.costs);
  // More placements than a loop or two and the V share what is spent on these.
  const int placements =
      std::max(0, request.max_chunks - request.min_chunks + 1) + (request.allow_v ? 1 : 0);
  const double effort = request.effort * 3 / std::max(3, placements);
  std::vector<Option> options;
  for (int chunks = request.min_chunks; chunks <= request.max_chunks; ++chunks) {
    options.push_back(explore(request, Placement::Kind::loop, chunks, effort));
  }
  if (request.allow_v) {
    options.push_back(explore(request, Placement::Kind::v, 2, effort));
  }
  const auto better = [](const Option& x, const Option& y) {
    return !x.pool.empty() &&
           (y.pool.empty() || x.pool.front().cost.better_than(y.pool.front().cost));
  };
  std::stable_sort(options.begin(), options.end(), better);
  if (options.front().pool.empty()) {
    throw does_not_fit(
        *std::min_element(request.activation_limit.begin(), request.activation_limit.end()));
  }
  const double close = 1.03 * options.front().pool.front().cost.objective;
  for (Option& option : options) {
    if (!option.pool.empty() && option.pool.front().cost.objective <= close) {
      refine(option, effort);
    }
  }
  if (request.lowered) {
    return best_lowered(options, request);
  }
  std::stable_sort(options.begin(), options.end(), better);
  const Option& best = options.front();
  const Candidate& chosen = choice(best);
  Schedule schedule = to_schedule(best.problem, chosen.words);
  Simulation simulation = simulate(schedule, request.costs);
  return {std::move(schedule), std::move(simulation), chosen.origin};
}

}  // namespace pipetrain::schedule
