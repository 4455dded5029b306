#include "schedule/search_policy.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "pipetrain/progress.h"
#include "schedule/search_list.h"
#include "schedule/search_pattern.h"
#include "schedule/search_random.h"

namespace pipetrain::schedule {
namespace {

// A value per rank, linear from rank 0 to rank p-1.
struct Line {
  double first = 0;
  double last = 0;

  int at(const Problem& problem, int rank) const {
    const double x = problem.ranks > 1 ? double(rank) / (problem.ranks - 1) : 0;
    return int(std::lround(first + (last - first) * x));
  }
};

// A policy in a few numbers, of any number of ranks.
struct Shape {
  std::vector<Line> lead;  // per chunk
  Line debt;
  Line final_debt;
  double tolerance = 0;
  double evenness = 0;
  std::vector<Letter> priority;
  std::optional<Pattern> pattern;                // gives sequences
  const std::vector<Word>* sequences = nullptr;  // fixed ones
  bool free_end = false;
};

Policy to_policy(const Problem& problem, const Shape& shape) {
  Policy policy;
  policy.evenness = shape.evenness;
  std::vector<Word> sequences;
  if (shape.pattern) {
    sequences = sequences_of(problem, *shape.pattern);
  } else if (shape.sequences != nullptr) {
    sequences = *shape.sequences;
  }
  for (int r = 0; r < problem.ranks; ++r) {
    RankPolicy& rank = policy.ranks.emplace_back();
    for (const Line& lead : shape.lead) {
      rank.lead.push_back(std::clamp(lead.at(problem, r), 1, problem.microbatches));
    }
    const int most_debt = problem.microbatches * problem.chunks;
    rank.debt = std::clamp(shape.debt.at(problem, r), 0, most_debt);
    rank.final_debt = std::clamp(shape.final_debt.at(problem, r), 0, most_debt);
    rank.tolerance = shape.tolerance;
    rank.priority = shape.priority;
    rank.free_end = shape.free_end;
    if (!sequences.empty()) {
      rank.sequence = std::move(sequences[size_t(r)]);
    }
  }
  return policy;
}

// One chunk per rank. A step without idle time is a parallelogram: rank r begins r(F+c) later and
// gets its last gradient r(B+c) earlier than rank 0, which r(F+B+2c)/W weight gradients fill.
Shape random_single(const Problem& problem, Random& random) {
  const double cycle =
      problem.duration(0, Step::forward) + problem.duration(0, Step::input) + 2 * problem.latency;
  const double fill = cycle / std::max(problem.duration(0, Step::weight), 1e-3 * cycle + 1e-300);
  const double base = 1 + random.below(3);
  const double last = problem.ranks - 1;
  Shape shape;
  shape.lead = {{base + 2 * random.between(0.9, 1.3) * last, base}};
  shape.debt = {0, random.between(0, 1.6) * last * fill};
  return shape;
}

// V: memory is shared by chunk a (stages 0..p-1) and b (p..2p-1). Rank 0 holds a's alone but for
// one b, rank p-1 holds as many of both.
Shape random_v(const Problem& problem, Random& random) {
  const double most = std::min(problem.limits[0], 4.0 * problem.ranks);
  Shape shape;
  shape.lead = {
      {most * random.between(0.6, 1.05), most * random.between(0.3, 0.8)},
      {1 + (random.chance(0.5) ? 0 : random.between(0, 2)), most * random.between(0.3, 0.8)}};
  shape.debt = {random.between(0, 4), random.between(0, 1.5) * problem.ranks};
  return shape;
}

// Loop with several chunks.
Shape random_loop(const Problem& problem, Random& random) {
  const double usual = (problem.chunks + 1.0) * problem.ranks;  // interleaved's peak on rank 0
  const double share = std::min(problem.limits[0], 2 * usual) / problem.chunks;
  Shape shape;
  for (int c = 0; c < problem.chunks; ++c) {
    shape.lead.push_back({1 + share * random.between(0.3, 2), 1 + share * random.between(0, 1.5)});
  }
  shape.debt = {random.between(0, 4), random.between(0, 1.5) * problem.ranks};
  return shape;
}

Shape random_shape(const Problem& problem, Random& random) {
  Shape shape = problem.chunks == 1                              ? random_single(problem, random)
                : problem.placement.kind() == Placement::Kind::v ? random_v(problem, random)
                                                                 : random_loop(problem, random);
  const double all = problem.microbatches * problem.chunks;
  shape.final_debt = random.chance(0.5) ? shape.debt : Line{all, all};
  shape.evenness = random.chance(0.6) ? 0 : random.chance(0.5) ? 1 : random.uniform();
  const double tolerances[] = {0, 0.25, 0.5, 1};
  shape.tolerance = tolerances[random.below(4)] * problem.duration(0, Step::weight);
  for (int c = 0; c < problem.chunks; ++c) {
    shape.priority.push_back({Step::forward, std::uint8_t(c)});
    shape.priority.push_back({Step::input, std::uint8_t(c)});
  }
  shape.free_end = random.chance(0.7);
  if (problem.chunks > 1 || random.chance(0.2)) {
    for (size_t i = shape.priority.size() - 1; i > 0; --i) {
      std::swap(shape.priority[i], shape.priority[size_t(random.below(int(i) + 1))]);
    }
  }
  return shape;
}

void vary(Shape& shape, const Problem& problem, Random& random) {
  const auto nudge = [&](double& value) {
    if (random.chance(0.4)) {
      value = std::max(0.0, value + random.between(-1, 1) * (1 + 0.15 * value));
    }
  };
  for (Line& lead : shape.lead) {
    nudge(lead.first);
    nudge(lead.last);
  }
  nudge(shape.debt.first);
  nudge(shape.debt.last);
  nudge(shape.final_debt.first);
  nudge(shape.final_debt.last);
  if (random.chance(0.3)) {
    shape.tolerance = random.between(0, 1.2) * problem.duration(0, Step::weight);
  }
  if (shape.pattern && random.chance(0.7)) {
    vary(*shape.pattern, random);
  }
  if (random.chance(0.05)) {
    shape.free_end = !shape.free_end;
  }
  if (shape.evenness > 0 && random.chance(0.2)) {
    shape.evenness = random.between(0.5, 1);
  }
  if (random.chance(0.15)) {
    const int at = random.below(int(shape.priority.size()) - 1);
    std::swap(shape.priority[size_t(at)], shape.priority[size_t(at) + 1]);
  }
}

void vary(Policy& policy, const Problem& problem, Random& random) {
  for (int changes = 1 + random.below(3); changes > 0; --changes) {
    RankPolicy& rank = policy.ranks[size_t(random.below(problem.ranks))];
    const int step = random.chance(0.5) ? 1 : -1;
    const int what = random.below(problem.chunks + 4);
    if (what < problem.chunks) {
      int& lead = rank.lead[size_t(what)];
      lead = std::max(1, lead + step);
    } else if (what == problem.chunks) {
      rank.final_debt = std::max(0, rank.final_debt + step * (1 + random.below(2)));
    } else if (what < problem.chunks + 3) {
      rank.debt = std::max(0, rank.debt + step * (1 + random.below(2)));
    } else {
      rank.tolerance = random.between(0, 1.2) * problem.duration(0, Step::weight);
    }
  }
}

struct Trial {
  Shape shape;
  Candidate best;
};

void best_first(std::vector<Trial>& trials, size_t keep) {
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& x, const Trial& y) {
    return x.best.cost.blend() < y.best.cost.blend();
  });
  if (trials.size() > keep) {
    trials.erase(trials.begin() + std::ptrdiff_t(keep), trials.end());
  }
}

// Changes `policy` for `runs` runs and keeps what is no worse.
template <typename AnyPolicy, typename Run>
void climb(AnyPolicy policy, Candidate& best, const Problem& problem, Random& random, size_t runs,
           Run run) {
  for (size_t i = 0; i < runs && best.cost.objective > problem.least * (1 + 1e-9); ++i) {
    AnyPolicy changed = policy;
    vary(changed, problem, random);
    const Candidate candidate = run(changed);
    if (candidate.cost.blend() <= best.cost.blend()) {
      policy = std::move(changed);
      best = candidate;
    }
  }
}

}  // namespace

void best_first(std::vector<Candidate>& candidates, size_t keep) {
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& x, const Candidate& y) { return x.cost.better_than(y.cost); });
  if (candidates.size() > keep) {
    candidates.erase(candidates.begin() + std::ptrdiff_t(keep), candidates.end());
  }
}

std::vector<Candidate> search_policies(const Problem& problem, const std::vector<Words>& sources,
                                       size_t runs, std::uint64_t seed) {
  Random random(seed);
  ListScheduler scheduler(problem);
  const auto run_policy = [&](const Policy& policy) {
    report_progress();
    const Cost cost = scheduler.run(policy);
    return Candidate{scheduler.words(), cost, "list scheduling"};
  };
  const auto run_shape = [&](const Shape& shape) { return run_policy(to_policy(problem, shape)); };

  std::vector<Pattern> patterns;
  std::vector<std::vector<Word>> sequences;
  for (const Words& words : sources) {
    patterns.push_back(pattern_of(problem, words));
    sequences.push_back(sequences_of(words));
  }
  // Families that begin at random: priorities; patterns; patterns and sequences of the sources.
  const size_t families = sources.empty() ? 2 : 3;
  std::vector<Trial> climbers;
  for (size_t family = 0; family < families; ++family) {
    std::vector<Trial> trials;
    for (size_t i = 0; i < std::max<size_t>(runs / 3 / families, 1); ++i) {
      Shape shape = random_shape(problem, random);
      if (family == 1) {
        shape.pattern = random_pattern(problem, random);
      } else if (family == 2) {
        const size_t source = i / 2 % sources.size();
        if (i % 2 == 0) {
          shape.sequences = &sequences[source];
        } else {
          shape.pattern = patterns[source];
        }
      }
      Candidate candidate = run_shape(shape);
      trials.push_back({std::move(shape), std::move(candidate)});
    }
    best_first(trials, 3);
    std::move(trials.begin(), trials.end(), std::back_inserter(climbers));
  }
  for (Trial& trial : climbers) {
    climb(trial.shape, trial.best, problem, random, runs / 3 / climbers.size(), run_shape);
  }
  best_first(climbers, climbers.size());
  const size_t finalists = std::min<size_t>(2, climbers.size());
  std::vector<Candidate> found;
  for (size_t i = 0; i < climbers.size(); ++i) {
    Trial& trial = climbers[i];
    if (i < finalists) {
      climb(to_policy(problem, trial.shape), trial.best, problem, random, runs / 3 / finalists,
            run_policy);
    }
    if (!std::isinf(trial.best.cost.objective)) {
      found.push_back(std::move(trial.best));
    }
  }
  return found;
}

}  // namespace pipetrain::schedule
