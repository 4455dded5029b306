#include "schedule/search_moves.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pipetrain/progress.h"
#include "schedule/search_random.h"

namespace pipetrain::schedule {
namespace {

using Path = std::vector<Evaluator::Position>;

// In mean durations of a letter.
constexpr double kFirstTemperature = 0.12;
constexpr double kLastTemperature = 0.03;
constexpr size_t kMovesBetweenReports = 64;  // of progress

struct Move {
  int rank = 0;
  int from = 0;
  int to = 0;
};

// The critical path consists of blocks: letters of one rank without idle time between. What is
// inside a block can only help by leaving it; else its first or last letter has to change.
Move block_move(const Words& words, const Path& path, Random& random) {
  const auto follows = [&](size_t later, size_t earlier) {
    return path[later].rank == path[earlier].rank && path[later].index == path[earlier].index + 1;
  };
  const auto chosen = size_t(random.below(int(path.size())));  // the path is last letter first
  size_t last = chosen;
  while (last > 0 && follows(last - 1, last)) {
    --last;
  }
  size_t first = chosen;
  while (first + 1 < path.size() && follows(first, first + 1)) {
    ++first;
  }
  const int begin = path[first].index;
  const int end = path[last].index;
  const int rank = path[chosen].rank;
  const int beyond = random.below(3);
  switch (random.below(4)) {
    case 0:
      return {rank, path[chosen].index,
              std::min(end + beyond, int(words[size_t(rank)].size()) - 1)};
    case 1:
      return {rank, path[chosen].index, std::max(begin - beyond, 0)};
    case 2:
      return {rank, end, std::max(end - 1 - random.below(4), begin)};
    default:
      return {rank, begin, std::min(begin + 1 + random.below(4), end)};
  }
}

Move any_move(const Words& words, const Path& path, Random& random) {
  constexpr double kLongest = 12;  // in letters
  Move move;
  if (random.chance(0.8)) {
    const Evaluator::Position at = path[size_t(random.below(int(path.size())))];
    move.rank = at.rank;
    move.from = at.index + (random.chance(0.3) ? random.below(5) - 2 : 0);
  } else {
    move.rank = random.below(int(words.size()));
    move.from = random.below(int(words[size_t(move.rank)].size()));
  }
  const int last = int(words[size_t(move.rank)].size()) - 1;
  const int distance = 1 + int(std::pow(kLongest, random.uniform()));
  move.from = std::clamp(move.from, 0, last);
  move.to = std::clamp(move.from + (random.chance(0.5) ? distance : -distance), 0, last);
  return move;
}

bool is_backward(Step step) {
  return step == Step::input || step == Step::whole;
}

// Whether the two send along the same edges, if all chunks share them.
bool same_direction(Letter x, Letter y) {
  return (x.step == Step::forward && y.step == Step::forward) ||
         (is_backward(x.step) && is_backward(y.step));
}

// Returns whether the word is another one now.
bool apply(const Problem& problem, Word& word, const Move& move) {
  const auto [first, last] = std::minmax(move.from, move.to);
  const auto at = [&](int index) { return word.begin() + index; };
  const Letter moved = *at(move.from);
  if (std::all_of(at(first), at(last + 1), [&](Letter letter) { return letter == moved; })) {
    return false;
  }
  if (problem.shares_edges && std::any_of(at(first), at(last + 1), [&](Letter letter) {
        return letter.chunk != moved.chunk && same_direction(letter, moved);
      })) {
    return false;
  }
  if (move.from < move.to) {
    std::rotate(at(first), at(first + 1), at(last + 1));
  } else {
    std::rotate(at(first), at(last), at(last + 1));
  }
  return true;
}

// Splits a whole backward, or joins an input gradient and the weight gradient right behind it.
bool split_or_join(Word& word, int index) {
  const auto at = word.begin() + index;
  const std::uint8_t chunk = at->chunk;
  if (at->step == Step::whole) {
    at->step = Step::input;
    word.insert(at + 1, {Step::weight, chunk});
    return true;
  }
  if (at->step == Step::input && at + 1 != word.end() && *(at + 1) == Letter{Step::weight, chunk}) {
    at->step = Step::whole;
    word.erase(at + 1);
    return true;
  }
  return false;
}

double mean_duration(const Problem& problem) {
  return std::accumulate(problem.durations.begin(), problem.durations.end(), 0.0) /
         (problem.ranks * (kSteps + 1.0));
}

}  // namespace

Candidate anneal(const Problem& problem, const Candidate& start, size_t moves, std::uint64_t seed) {
  Random random(seed);
  Evaluator evaluator(problem);
  Candidate best = start;
  Words words = start.words;
  Word before;
  Path path;
  Cost cost = evaluator.run(words);
  evaluator.critical_path(words, path);
  const bool moved = start.origin.ends_with(" and moves");
  const std::string origin = moved ? start.origin : start.origin + " and moves";
  const double letter_time = mean_duration(problem);
  for (size_t i = 0; i < moves && best.cost.objective > problem.least * (1 + 1e-9); ++i) {
    if (i % kMovesBetweenReports == 0) {
      report_progress();
    }
    const double temperature =
        letter_time * kFirstTemperature *
        std::pow(kLastTemperature / kFirstTemperature, double(i) / double(moves));
    const Move move =
        random.chance(0.75) ? block_move(words, path, random) : any_move(words, path, random);
    Word& word = words[size_t(move.rank)];
    before = word;
    // Joining only helps where a weight gradient put off holds more than an activation.
    const bool changed = problem.weight_memory > 1 && random.chance(0.1)
                             ? split_or_join(word, move.from)
                             : apply(problem, word, move);
    if (!changed) {
      continue;
    }
    if (is_legal(problem, word, move.rank)) {
      // Metropolis: a worse cost is accepted with probability exp(-worse / temperature).
      const double accepted = cost.blend() - temperature * std::log(1 - random.uniform());
      const Cost next = evaluator.run(words, accepted);
      if (next.blend() <= accepted) {
        cost = next;
        evaluator.critical_path(words, path);
        if (cost.better_than(best.cost)) {
          best = {words, cost, origin};
        }
        continue;
      }
    }
    word = before;
  }
  return best;
}

}  // namespace pipetrain::schedule
