#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "pipetrain/schedule/placement.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/schedule/search.h"

namespace pipetrain::schedule {

// What the search moves around. Micro-batches are alike, so they pass a stage in ascending order
// and a rank's list is a word over letters (step, chunk of the rank); a letter's micro-batch is how
// often it stood before.
enum class Step : std::uint8_t { forward, input, weight, whole };
inline constexpr size_t kSteps = 4;

struct Letter {
  Step step = Step::forward;
  std::uint8_t chunk = 0;

  friend bool operator==(const Letter&, const Letter&) = default;
};

using Word = std::vector<Letter>;
using Words = std::vector<Word>;  // one per rank

// A request as the search computes with it. Times are of one chunk, memory is counted in chunks.
struct Problem {
  Problem(const SearchRequest& request, Placement::Kind kind, int chunks);

  Placement placement;
  int ranks = 1;
  int chunks = 1;
  int stages = 1;
  int microbatches = 1;
  std::vector<double> durations;  // [rank * kSteps + step]
  double latency = 0;
  std::vector<double> limits;  // per rank
  double weight_memory = 1;
  bool by_span = false;
  // Loop with several chunks: all of them share the edges between ranks, whose messages keep their
  // order. So all ranks run the forwards of their chunks in one order, and so the inputs.
  bool shares_edges = false;
  std::vector<double> work;   // per rank, over all micro-batches
  double least = 0;           // no schedule has a smaller objective
  std::vector<int> stage_of;  // [rank * chunks + chunk]
  std::vector<int> rank_of;   // [stage]

  double duration(int rank, Step step) const {
    return durations[size_t(rank) * kSteps + size_t(step)];
  }
  // What a letter adds to the chunks that its rank holds.
  double memory(Step step) const {
    const double change[kSteps] = {1, weight_memory - 1, -weight_memory, -1};
    return change[size_t(step)];
  }
  size_t letters() const { return size_t(stages) * size_t(microbatches) * 3; }
};

// What is minimised: `objective` first, then `mean`, which tells apart the many schedules with the
// same objective.
struct Cost {
  double objective = 0;  // span or makespan; infinity: the words deadlock
  double mean = 0;       // over the ranks, of their span or end

  double blend() const { return objective + 0.05 * mean; }
  bool better_than(const Cost& other) const {
    const double tolerance = 1e-9 * other.objective;
    return objective < other.objective - tolerance ||
           (objective < other.objective + tolerance && mean < other.mean - tolerance);
  }
};

// Runs words by the time model of simulate(). Buffers are kept from call to call.
class Evaluator {
 public:
  explicit Evaluator(const Problem& problem);

  // Infinite where the words deadlock, or as soon as the objective is known to exceed `give_up`.
  Cost run(const Words& words, double give_up = std::numeric_limits<double>::infinity());

  // Of the last run.
  double forward_end(int stage, int microbatch) const {
    return forward_end_[size_t(stage + 1) * size_t(problem_.microbatches) + size_t(microbatch)];
  }
  double input_end(int stage, int microbatch) const {
    return input_end_[size_t(stage + 1) * size_t(problem_.microbatches) + size_t(microbatch)];
  }
  struct Position {
    int rank = 0;
    int index = 0;
  };
  // The letters, last first, that the objective consists of: each waited for the one after it.
  void critical_path(const Words& words, std::vector<Position>& path) const;

 private:
  void wake(int rank);
  void advance(const Word& word, int rank);

  const Problem& problem_;
  std::vector<std::vector<double>> ends_;  // per rank and letter
  std::vector<int> next_;                  // per rank: letters done
  std::vector<double> free_;               // per rank
  std::vector<int> forwards_, inputs_;     // per stage: how many are done
  // [(stage + 1) * microbatches + microbatch]; a stage before the first and one after the last
  // give what comes from outside, at time 0. Negative: not done.
  std::vector<double> forward_end_, input_end_;
  std::vector<int> runnable_;
  std::vector<char> awake_;    // per rank: stands in runnable_
  std::vector<double> least_;  // per rank: work and the idle time so far
  int last_rank_ = 0;          // whose end gives the objective
};

// Whether the rank's word holds every letter as often as it must, each after what it needs on its
// own rank, weight gradients ascending, and never more than the rank's limit.
bool is_legal(const Problem& problem, const Word& word, int rank);

Schedule to_schedule(const Problem& problem, const Words& words);

// The words of a schedule with the problem's placement. Empty where it is not of their form
// (micro-batches out of order, overlapped pairs) or exceeds the limit. Whole backwards are split
// where the limit allows it.
Words to_words(const Problem& problem, const Schedule& schedule);

}  // namespace pipetrain::schedule
