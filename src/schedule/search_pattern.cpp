#include "schedule/search_pattern.h"

#include <algorithm>
#include <limits>

namespace pipetrain::schedule {

Pattern random_pattern(const Problem& problem, Random& random) {
  Pattern pattern;
  pattern.period = 3 * problem.chunks;  // slots of one letter
  const size_t chunks = size_t(problem.chunks);
  std::vector<double> forward_hop(chunks), input_hop(chunks);
  for (size_t c = 0; c < chunks; ++c) {
    forward_hop[c] = random.chance(0.4) ? 1 : random.between(1, 4);
    input_hop[c] = random.chance(0.4) ? 1 : random.between(1, 3);
  }
  double time = 0;
  for (int stage = 0; stage < problem.stages; ++stage) {
    pattern.forward.push_back(time);
    time += forward_hop[size_t(stage / problem.ranks)];
  }
  time += random.below(4);
  pattern.input.resize(size_t(problem.stages));
  for (int stage = problem.stages - 1; stage >= 0; --stage) {
    pattern.input[size_t(stage)] = time;
    time += input_hop[size_t(stage / problem.ranks)];
  }
  return pattern;
}

Pattern pattern_of(const Problem& problem, const Words& words) {
  Evaluator evaluator(problem);
  evaluator.run(words);
  Pattern pattern;
  for (int r = 0; r < problem.ranks; ++r) {
    const double work = problem.duration(r, Step::forward) + problem.duration(r, Step::whole);
    pattern.period = std::max(r == 0 ? 0 : pattern.period, work * problem.chunks);
  }
  for (int stage = 0; stage < problem.stages; ++stage) {
    const int middle = problem.microbatches / 2;
    pattern.forward.push_back(evaluator.forward_end(stage, middle));
    pattern.input.push_back(evaluator.input_end(stage, middle));
  }
  return pattern;
}

void vary(Pattern& pattern, Random& random) {
  const double slot = pattern.period / 6;
  for (int changes = 1 + random.below(2); changes > 0; --changes) {
    const double shift =
        slot * (random.chance(0.5) ? random.between(-2, 2) : (random.below(2) * 2 - 1) * 1.0);
    const int stages = int(pattern.forward.size());
    const int stage = random.below(stages);
    const bool forward = random.chance(0.5);
    if (random.chance(0.5)) {
      (forward ? pattern.forward : pattern.input)[size_t(stage)] += shift;
      continue;
    }
    if (forward) {
      for (int s = stage; s < stages; ++s) {
        pattern.forward[size_t(s)] += shift;
      }
    }
    for (int s = forward ? stages - 1 : stage; s >= 0; --s) {
      pattern.input[size_t(s)] += shift;
    }
  }
}

std::vector<Word> sequences_of(const Problem& problem, const Pattern& pattern) {
  constexpr double kDone = std::numeric_limits<double>::infinity();
  std::vector<Word> sequences;
  for (int r = 0; r < problem.ranks; ++r) {
    Word& sequence = sequences.emplace_back();
    sequence.reserve(size_t(2 * problem.chunks * problem.microbatches));
    Word letters;
    std::vector<double> next;  // per letter: when its next micro-batch is due
    for (int c = 0; c < problem.chunks; ++c) {
      const auto stage = size_t(problem.stage_of[size_t(r * problem.chunks + c)]);
      letters.push_back({Step::forward, std::uint8_t(c)});
      next.push_back(pattern.forward[stage]);
      letters.push_back({Step::input, std::uint8_t(c)});
      next.push_back(pattern.input[stage]);
    }
    std::vector<int> left(letters.size(), problem.microbatches);
    for (;;) {
      const auto soonest = std::min_element(next.begin(), next.end());
      if (*soonest == kDone) {
        break;
      }
      const auto at = size_t(soonest - next.begin());
      sequence.push_back(letters[at]);
      *soonest = --left[at] == 0 ? kDone : *soonest + pattern.period;
    }
  }
  return sequences;
}

std::vector<Word> sequences_of(const Words& words) {
  std::vector<Word> sequences;
  for (const Word& word : words) {
    Word& sequence = sequences.emplace_back();
    for (const Letter letter : word) {
      if (letter.step != Step::weight) {
        sequence.push_back(
            {letter.step == Step::forward ? Step::forward : Step::input, letter.chunk});
      }
    }
  }
  return sequences;
}

}  // namespace pipetrain::schedule
