#pragma once

#include <vector>

#include "schedule/search_problem.h"
#include "schedule/search_random.h"

namespace pipetrain::schedule {

// A building block that repeats (Qi et al. 2024, controllable memory): when one micro-batch runs
// forward and input gradient of every stage; micro-batch k does the same k periods later. What
// counts is the order that this gives each rank.
struct Pattern {
  double period = 1;
  std::vector<double> forward, input;  // per stage
};

// Constant hops per chunk and direction, from as fast as data can travel to several times slower.
Pattern random_pattern(const Problem& problem, Random& random);

// The times of the middle micro-batch of `words`.
Pattern pattern_of(const Problem& problem, const Words& words);

// Moves one letter, or all that come after it, by a few slots.
void vary(Pattern& pattern, Random& random);

// Per rank, all forwards and inputs in the pattern's order.
std::vector<Word> sequences_of(const Problem& problem, const Pattern& pattern);

// The forwards and inputs of the words.
std::vector<Word> sequences_of(const Words& words);

}  // namespace pipetrain::schedule
