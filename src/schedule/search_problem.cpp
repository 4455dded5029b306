#include "schedule/search_problem.h"

#include <algorithm>
#include <array>
#include <limits>

namespace pipetrain::schedule {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double share_of(const std::vector<double>& times, int rank, int chunks) {
  return (times.size() == 1 ? times[0] : times[size_t(rank)]) / chunks;
}

// Counts of one chunk while a word is read.
struct Counts {
  int forwards = 0;
  int inputs = 0;
  int weights = 0;

  // False where the letter may not stand here.
  bool take(Step step) {
    switch (step) {
      case Step::forward:
        ++forwards;
        return true;
      case Step::input:
        return ++inputs <= forwards;
      case Step::weight:
        return ++weights <= inputs;
      case Step::whole:
        break;
    }
    if (weights != inputs) {
      return false;  // an older weight gradient is still to be added
    }
    ++weights;
    return ++inputs <= forwards;
  }
};

}  // namespace

Problem::Problem(const SearchRequest& request, Placement::Kind kind, int chunks_per_rank)
    : placement(kind, request.ranks, chunks_per_rank, request.microbatches),
      ranks(request.ranks),
      chunks(chunks_per_rank),
      stages(ranks * chunks),
      microbatches(request.microbatches),
      latency(request.costs.latency + request.costs.transfer),
      weight_memory(request.costs.weight_memory),
      by_span(request.objective == Objective::span),
      shares_edges(kind == Placement::Kind::loop && chunks > 1 && ranks > 1),
      stage_of(size_t(stages)),
      rank_of(size_t(stages)) {
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = placement.owner(stage, 0);
    stage_of[size_t(rank * chunks + stage / ranks)] = stage;
    rank_of[size_t(stage)] = rank;
  }
  double begin = 0;  // earliest start of a rank
  for (int r = 0; r < ranks; ++r) {
    const double forward = share_of(request.costs.forward, r, chunks);
    const double input = share_of(request.costs.backward_input, r, chunks);
    const double weight = share_of(request.costs.backward_weight, r, chunks);
    durations.insert(durations.end(), {forward, input, weight, input + weight});
    work.push_back((forward + input + weight) * chunks * microbatches);
    least = std::max(least, work.back() + (by_span ? 0 : begin));
    begin += forward + latency;
    limits.push_back(request.activation_limit.empty()
                         ? kInfinity
                         : share_of(request.activation_limit, r, 1) * chunks + 1e-9);
  }
}

// ---- evaluation

Evaluator::Evaluator(const Problem& problem)
    : problem_(problem),
      ends_(size_t(problem.ranks)),
      next_(size_t(problem.ranks)),
      free_(size_t(problem.ranks)),
      forwards_(size_t(problem.stages)),
      inputs_(size_t(problem.stages)),
      forward_end_(size_t(problem.stages + 2) * size_t(problem.microbatches)),
      input_end_(forward_end_.size()),
      awake_(size_t(problem.ranks)),
      least_(size_t(problem.ranks)) {}

void Evaluator::wake(int rank) {
  if (!awake_[size_t(rank)]) {
    awake_[size_t(rank)] = true;
    runnable_.push_back(rank);
  }
}

// Runs the rank until it has to wait for another.
void Evaluator::advance(const Word& word, int rank) {
  const Problem& problem = problem_;
  const size_t microbatches = size_t(problem.microbatches);
  const int* stage_of = &problem.stage_of[size_t(rank * problem.chunks)];
  const double* durations = &problem.durations[size_t(rank) * kSteps];
  double* ends = ends_[size_t(rank)].data();
  double time = free_[size_t(rank)];
  size_t at = size_t(next_[size_t(rank)]);
  for (; at < word.size(); ++at) {
    const Letter letter = word[at];
    if (letter.step != Step::weight) {
      const bool forward = letter.step == Step::forward;
      const int stage = stage_of[letter.chunk];
      const int source = forward ? stage - 1 : stage + 1;
      const int target = forward ? stage + 1 : stage - 1;
      int& count = forward ? forwards_[size_t(stage)] : inputs_[size_t(stage)];
      std::vector<double>& made = forward ? forward_end_ : input_end_;
      double ready = made[size_t(source + 1) * microbatches + size_t(count)];
      if (ready < 0) {
        break;
      }
      if (source >= 0 && source < problem.stages && problem.rank_of[size_t(source)] != rank) {
        ready += problem.latency;
      }
      if (ready > time) {
        least_[size_t(rank)] += at > 0 || !problem.by_span ? ready - time : 0;
        time = ready;
      }
      time += durations[size_t(letter.step)];
      made[size_t(stage + 1) * microbatches + size_t(count)] = time;
      ++count;
      if (target >= 0 && target < problem.stages) {
        wake(problem.rank_of[size_t(target)]);
      }
    } else {
      time += durations[size_t(Step::weight)];
    }
    ends[at] = time;
  }
  next_[size_t(rank)] = int(at);
  free_[size_t(rank)] = time;
  awake_[size_t(rank)] = false;
}

Cost Evaluator::run(const Words& words, double give_up) {
  const auto outside = std::ptrdiff_t(problem_.microbatches);
  std::fill(forward_end_.begin(), forward_end_.end(), -1);
  std::fill(forward_end_.begin(), forward_end_.begin() + outside, 0);
  std::fill(input_end_.begin(), input_end_.end(), -1);
  std::fill(input_end_.end() - outside, input_end_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(free_.begin(), free_.end(), 0);
  std::fill(forwards_.begin(), forwards_.end(), 0);
  std::fill(inputs_.begin(), inputs_.end(), 0);
  std::fill(awake_.begin(), awake_.end(), false);
  runnable_.clear();
  least_ = problem_.work;
  for (int r = problem_.ranks - 1; r >= 0; --r) {
    ends_[size_t(r)].resize(words[size_t(r)].size());
    wake(r);
  }
  while (!runnable_.empty()) {
    const int rank = runnable_.back();
    runnable_.pop_back();
    advance(words[size_t(rank)], rank);
    if (least_[size_t(rank)] > give_up) {
      return {kInfinity, kInfinity};
    }
  }
  Cost cost;
  for (int r = 0; r < problem_.ranks; ++r) {
    const Word& word = words[size_t(r)];
    if (next_[size_t(r)] < int(word.size())) {
      return {kInfinity, kInfinity};
    }
    const double begin = ends_[size_t(r)][0] - problem_.duration(r, word[0].step);
    const double time = free_[size_t(r)] - (problem_.by_span ? begin : 0);
    cost.mean += time / problem_.ranks;
    if (time > cost.objective) {
      cost.objective = time;
      last_rank_ = r;
    }
  }
  return cost;
}

void Evaluator::critical_path(const Words& words, std::vector<Position>& path) const {
  const auto is_backward = [](Step step) { return step == Step::input || step == Step::whole; };
  const auto same_direction = [&](Step x, Step y) {
    return x == y || (is_backward(x) && is_backward(y));
  };
  path.clear();
  int rank = last_rank_;
  int index = int(words[size_t(rank)].size()) - 1;
  for (;;) {
    path.push_back({rank, index});
    const Word& word = words[size_t(rank)];
    const Letter letter = word[size_t(index)];
    const double end = ends_[size_t(rank)][size_t(index)];
    const double start = end - problem_.duration(rank, letter.step);
    if (index > 0 && ends_[size_t(rank)][size_t(index) - 1] >= start - 1e-9 * end) {
      --index;
      continue;
    }
    const int stage = problem_.stage_of[size_t(rank * problem_.chunks + letter.chunk)];
    const int source = letter.step == Step::forward ? stage - 1 : stage + 1;
    if (letter.step == Step::weight || source < 0 || source == problem_.stages) {
      return;
    }
    // The letter of the source stage that stands as often before.
    auto before = std::count_if(word.begin(), word.begin() + index, [&](Letter other) {
      return other.chunk == letter.chunk && same_direction(other.step, letter.step);
    });
    rank = problem_.rank_of[size_t(source)];
    const Word& other_word = words[size_t(rank)];
    const auto chunk = std::uint8_t(source / problem_.ranks);
    const auto found = std::find_if(other_word.begin(), other_word.end(), [&](Letter other) {
      return other.chunk == chunk && same_direction(other.step, letter.step) && before-- == 0;
    });
    index = int(found - other_word.begin());
  }
}

// ---- words

bool is_legal(const Problem& problem, const Word& word, int rank) {
  constexpr size_t kMostChunks = 256;
  std::array<Counts, kMostChunks> counts;
  std::fill_n(counts.begin(), problem.chunks, Counts{});
  const double change[kSteps] = {problem.memory(Step::forward), problem.memory(Step::input),
                                 problem.memory(Step::weight), problem.memory(Step::whole)};
  const double limit = problem.limits[size_t(rank)];
  double held = 0;
  for (const Letter letter : word) {
    held += change[size_t(letter.step)];
    if (!counts[letter.chunk].take(letter.step) || held > limit) {
      return false;
    }
  }
  return std::all_of(counts.begin(), counts.begin() + problem.chunks, [&](const Counts& count) {
    return count.forwards == problem.microbatches && count.inputs == problem.microbatches &&
           count.weights == problem.microbatches;
  });
}

Schedule to_schedule(const Problem& problem, const Words& words) {
  Schedule schedule{"auto", problem.placement, {}, Update::step, false, {}};
  for (int r = 0; r < problem.ranks; ++r) {
    std::vector<Counts> counts(size_t(problem.chunks));
    std::vector<Action>& actions = schedule.ranks.emplace_back();
    for (const Letter letter : words[size_t(r)]) {
      const Counts before = counts[letter.chunk];
      counts[letter.chunk].take(letter.step);
      const int stage = problem.stage_of[size_t(r * problem.chunks + letter.chunk)];
      switch (letter.step) {
        case Step::forward:
          actions.push_back({Kind::forward, stage, before.forwards});
          break;
        case Step::input:
          actions.push_back({Kind::backward_input, stage, before.inputs});
          break;
        case Step::weight:
          actions.push_back({Kind::backward_weight, stage, before.weights});
          break;
        case Step::whole:
          actions.push_back({Kind::backward, stage, before.inputs});
          break;
      }
    }
  }
  return schedule;
}

Words to_words(const Problem& problem, const Schedule& schedule) {
  Words words;
  for (int r = 0; r < problem.ranks; ++r) {
    std::vector<Counts> counts(size_t(problem.chunks));
    Word& word = words.emplace_back();
    double held = 0;
    for (const Action& action : schedule.ranks[size_t(r)]) {
      const auto chunk = std::uint8_t(action.stage / problem.ranks);
      const Counts before = counts[chunk];
      const auto add = [&](Step step) {
        word.push_back({step, chunk});
        counts[chunk].take(step);
        held += problem.memory(step);
      };
      int microbatch = before.inputs;
      if (action.kind == Kind::forward) {
        microbatch = before.forwards;
        add(Step::forward);
      } else if (action.kind == Kind::backward_input) {
        add(Step::input);
      } else if (action.kind == Kind::backward_weight) {
        microbatch = before.weights;
        add(Step::weight);
      } else if (held + problem.memory(Step::input) <= problem.limits[size_t(r)]) {
        add(Step::input);
        add(Step::weight);
      } else {
        add(Step::whole);
      }
      if (microbatch != action.microbatch || action.overlaps_next) {
        return {};
      }
    }
    if (!is_legal(problem, word, r)) {
      return {};
    }
  }
  return words;
}

}  // namespace pipetrain::schedule
