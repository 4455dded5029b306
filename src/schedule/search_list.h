#pragma once

#include <vector>

#include "schedule/search_problem.h"

namespace pipetrain::schedule {

// What a rank prefers when it is free and several computations are ready.
struct RankPolicy {
  std::vector<int> lead;         // per chunk: most forwards ahead of backwards
  int debt = 0;                  // most weight gradients put off
  int final_debt = 0;            // the same, once all forwards are done
  double tolerance = 0;          // a weight gradient may delay a known arrival by this much
  std::vector<Letter> priority;  // forwards and inputs of all chunks, the most urgent first
  // Forwards and inputs in the order in which to run them, however long one has to wait; empty: by
  // priority. By priority again once all forwards are done, if `free_end`. With weight gradients
  // too, one is run where it stands unless as many were run before; then `debt` is only a limit.
  Word sequence;
  bool free_end = false;
  // While the rank waits, run what comes later in the sequence and does no harm; forwards of chunk
  // 0 then leave room for `spare` chunks. For two chunks.
  bool ahead = false;
  int spare = 0;
};
struct Policy {
  // Orders are made as if times were those of the problem (0), all the same and without latency
  // (1), or between.
  double evenness = 0;
  std::vector<RankPolicy> ranks;
};

// Event-driven list scheduling: whenever a rank is free it takes, in this order, a weight gradient
// if too many are put off; by sequence or priority what is ready, has its lead and fits into
// memory; a weight gradient to make room for what does not fit; a weight gradient while nothing is
// ready. A whole backward stands in for I where what I would hold does not fit.
class ListScheduler {
 public:
  explicit ListScheduler(const Problem& problem);

  // What the words cost by the problem's own times; infinite where the policy ends in a deadlock.
  Cost run(const Policy& policy);
  // Of the last run; legal where its cost is finite.
  const Words& words() const { return words_; }

 private:
  struct RankState {
    double free = 0;
    double held = 0;
    int debt = 0;
    int forwards_left = 0;
    std::vector<int> forwards, inputs, weights;  // per chunk
    std::vector<std::uint8_t> pending;           // chunks of weight gradients put off, oldest first
    size_t pending_begin = 0;
    size_t forwards_run = 0, inputs_run = 0;  // over all chunks
    size_t wrapped = 0;                       // messages taken from the edge that closes the loop
    size_t next = 0;                          // of the sequence
    int weights_run = 0;
    int weights_due = 0;      // how many the sequence has asked for
    std::vector<char> taken;  // of the sequence
  };

  double duration(int rank, Step step) const {
    return durations_[size_t(rank) * kSteps + size_t(step)];
  }
  bool keeps_order(int rank, Letter letter) const;
  double ready_time(int rank, const RankState& state, Letter letter) const;
  void decide(int rank, double now, const RankPolicy& policy);
  bool follow_sequence(int rank, double now, const RankPolicy& policy, double& next_arrival);
  bool follow_priority(int rank, double now, const RankPolicy& policy, double& next_arrival);
  bool run_ahead(int rank, double now, const RankPolicy& policy, double until);
  void do_weight(int rank, double now);
  bool do_input(int rank, double now, std::uint8_t chunk);
  void start(int rank, double now, Letter letter);

  const Problem& problem_;
  Evaluator evaluator_;
  double mean_duration_ = 0;       // of F, I and W
  double epsilon_ = 0;             // of times
  std::vector<double> durations_;  // of the policy, as in Problem
  double latency_ = 0;
  std::vector<RankState> states_;
  std::vector<double> wake_;                     // per rank: when it decides next
  std::vector<double> forward_end_, input_end_;  // as in Evaluator; infinity: not begun
  // Where chunks share edges: the one order of chunks that all ranks follow, decided by the rank
  // where a micro-batch comes in.
  std::vector<std::uint8_t> forward_order_, input_order_;
  Words words_;
};

}  // namespace pipetrain::schedule
