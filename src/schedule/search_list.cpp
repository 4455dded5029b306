#include "schedule/search_list.h"

#include <algorithm>
#include <limits>

namespace pipetrain::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The first place from `begin` on whose message goes round the loop.
size_t next_wrapped(const std::vector<std::uint8_t>& order, size_t begin, int last_chunk) {
  while (begin < order.size() && order[begin] == last_chunk) {
    ++begin;
  }
  return begin;
}

}  // namespace

ListScheduler::ListScheduler(const Problem& problem)
    : problem_(problem),
      evaluator_(problem),
      epsilon_(1e-9 * *std::max_element(problem.durations.begin(), problem.durations.end())),
      states_(size_t(problem.ranks)),
      wake_(size_t(problem.ranks)),
      forward_end_(size_t(problem.stages + 2) * size_t(problem.microbatches)),
      input_end_(forward_end_.size()),
      words_(size_t(problem.ranks)) {
  for (int r = 0; r < problem.ranks; ++r) {
    for (const Step step : {Step::forward, Step::input, Step::weight}) {
      mean_duration_ += problem.duration(r, step) / (3 * problem.ranks);
    }
  }
}

// Whether the rank may run this letter next without a message overtaking another.
bool ListScheduler::keeps_order(int rank, Letter letter) const {
  if (!problem_.shares_edges) {
    return true;
  }
  const RankState& state = states_[size_t(rank)];
  const bool forward = letter.step == Step::forward;
  const std::vector<std::uint8_t>& order = forward ? forward_order_ : input_order_;
  const size_t run = forward ? state.forwards_run : state.inputs_run;
  if (run < order.size()) {
    return order[run] == letter.chunk;
  }
  // The rank decides. What comes round the loop comes in the order in which it was sent.
  const int entry = forward ? 0 : problem_.chunks - 1;
  if (letter.chunk == entry) {
    return true;
  }
  const int exit = problem_.chunks - 1 - entry;
  size_t left = state.wrapped;
  const auto head = std::find_if(order.begin(), order.end(),
                                 [&](std::uint8_t chunk) { return chunk != exit && left-- == 0; });
  return head != order.end() && *head + (forward ? 1 : -1) == letter.chunk;
}

// When the input of the rank's next such letter is there; never: nobody has begun to make it.
double ListScheduler::ready_time(int rank, const RankState& state, Letter letter) const {
  const bool forward = letter.step == Step::forward;
  const int microbatch = forward ? state.forwards[letter.chunk] : state.inputs[letter.chunk];
  if (microbatch == (forward ? problem_.microbatches : state.forwards[letter.chunk])) {
    return kNever;
  }
  const int stage = problem_.stage_of[size_t(rank * problem_.chunks + letter.chunk)];
  const int source = forward ? stage - 1 : stage + 1;
  const std::vector<double>& ends = forward ? forward_end_ : input_end_;
  const double end = ends[size_t(source + 1) * size_t(problem_.microbatches) + size_t(microbatch)];
  const bool local =
      source < 0 || source == problem_.stages || problem_.rank_of[size_t(source)] == rank;
  return local ? end : end + latency_;
}

void ListScheduler::start(int rank, double now, Letter letter) {
  RankState& state = states_[size_t(rank)];
  const double end = now + duration(rank, letter.step);
  words_[size_t(rank)].push_back(letter);
  state.held += problem_.memory(letter.step);
  state.free = wake_[size_t(rank)] = end;
  if (letter.step == Step::weight) {
    ++state.weights[letter.chunk];
    return;
  }
  const bool forward = letter.step == Step::forward;
  const int stage = problem_.stage_of[size_t(rank * problem_.chunks + letter.chunk)];
  int& count = forward ? state.forwards[letter.chunk] : state.inputs[letter.chunk];
  (forward ? forward_end_
           : input_end_)[size_t(stage + 1) * size_t(problem_.microbatches) + size_t(count)] = end;
  ++count;
  if (problem_.shares_edges) {
    std::vector<std::uint8_t>& order = forward ? forward_order_ : input_order_;
    size_t& run = forward ? state.forwards_run : state.inputs_run;
    if (run++ == order.size()) {
      const int entry = forward ? 0 : problem_.chunks - 1;
      if (letter.chunk != entry) {
        state.wrapped = next_wrapped(order, state.wrapped, problem_.chunks - 1 - entry) + 1;
      }
      order.push_back(letter.chunk);
    }
  }
  state.forwards_left -= forward ? 1 : 0;
  const int target = forward ? stage + 1 : stage - 1;
  if (target >= 0 && target < problem_.stages) {
    const size_t other = size_t(problem_.rank_of[size_t(target)]);
    const double arrival = end + latency_;
    wake_[other] = std::min(wake_[other], std::max(arrival, states_[other].free));
  }
}

void ListScheduler::do_weight(int rank, double now) {
  RankState& state = states_[size_t(rank)];
  const std::uint8_t chunk = state.pending[state.pending_begin++];
  --state.debt;
  ++state.weights_run;
  start(rank, now, {Step::weight, chunk});
}

// Returns false where a weight gradient was run instead, to make room.
bool ListScheduler::do_input(int rank, double now, std::uint8_t chunk) {
  RankState& state = states_[size_t(rank)];
  if (state.held + problem_.memory(Step::input) <= problem_.limits[size_t(rank)]) {
    state.pending.push_back(chunk);
    ++state.debt;
    start(rank, now, {Step::input, chunk});
    return true;
  }
  if (state.debt > 0) {
    do_weight(rank, now);
    return false;
  }
  ++state.weights[chunk];
  ++state.weights_run;
  start(rank, now, {Step::whole, chunk});
  return true;
}

// Both return whether they started something.
bool ListScheduler::follow_priority(int rank, double now, const RankPolicy& policy,
                                    double& next_arrival) {
  RankState& state = states_[size_t(rank)];
  for (const Letter letter : policy.priority) {
    const double ready = ready_time(rank, state, letter);
    if (!keeps_order(rank, letter)) {
      continue;
    }
    if (ready > now + epsilon_) {
      next_arrival = std::min(next_arrival, ready);
      continue;
    }
    if (letter.step == Step::input) {
      do_input(rank, now, letter.chunk);
      return true;
    }
    if (state.forwards[letter.chunk] - state.inputs[letter.chunk] >= policy.lead[letter.chunk]) {
      continue;
    }
    // Later chunks always keep room to go on, or the rank would wait for itself.
    const int reserve = problem_.chunks - 1 - letter.chunk;
    if (state.held + 1 + reserve <= problem_.limits[size_t(rank)]) {
      start(rank, now, letter);
      return true;
    }
    if (state.debt > 0) {
      do_weight(rank, now);
      return true;
    }
  }
  return false;
}

bool ListScheduler::follow_sequence(int rank, double now, const RankPolicy& policy,
                                    double& next_arrival) {
  RankState& state = states_[size_t(rank)];
  const Word& sequence = policy.sequence;
  for (; state.next < sequence.size(); ++state.next) {
    if (state.taken[state.next]) {
      continue;
    }
    if (sequence[state.next].step != Step::weight) {
      break;
    }
    if (++state.weights_due > state.weights_run) {
      ++state.next;
      do_weight(rank, now);
      return true;
    }
  }
  size_t at = state.next;
  if (at < sequence.size() && sequence[at].step == Step::forward &&
      state.held + 1 > problem_.limits[size_t(rank)]) {
    if (state.debt > 0) {
      do_weight(rank, now);
      return true;
    }
    while (at < sequence.size() && (state.taken[at] || sequence[at].step != Step::input)) {
      ++at;  // only a backward makes room
    }
  }
  if (at == sequence.size()) {
    return false;
  }
  const Letter letter = sequence[at];
  next_arrival = keeps_order(rank, letter) ? ready_time(rank, state, letter) : kNever;
  if (next_arrival > now + epsilon_) {
    return policy.ahead && run_ahead(rank, now, policy, next_arrival);
  }
  if (letter.step == Step::input) {
    state.taken[at] = do_input(rank, now, letter.chunk);
  } else {
    state.taken[at] = true;
    start(rank, now, letter);
  }
  return true;
}

// Runs the first letter of the sequence that is ready, done by `until` and, being a forward, leaves
// room for what comes before it. Returns whether there was one.
bool ListScheduler::run_ahead(int rank, double now, const RankPolicy& policy, double until) {
  RankState& state = states_[size_t(rank)];
  const Word& sequence = policy.sequence;
  double held = state.held;
  double most = held;
  int weights_ahead = state.weights_run - state.weights_due;
  unsigned seen = 0;  // forwards and inputs, per chunk
  for (size_t at = state.next; at < sequence.size() && seen != 0b1111; ++at) {
    if (state.taken[at]) {
      continue;
    }
    const Letter letter = sequence[at];
    if (letter.step == Step::weight && weights_ahead > 0) {
      --weights_ahead;
      continue;
    }
    if (letter.step != Step::weight) {
      const bool forward = letter.step == Step::forward;
      seen |= 1u << (2 * letter.chunk + (forward ? 0 : 1));
      const double spare = letter.chunk == 0 ? policy.spare : 0;
      if (keeps_order(rank, letter) && ready_time(rank, state, letter) <= now + epsilon_ &&
          now + duration(rank, letter.step) <= until + epsilon_ &&
          (!forward || most + 1 + spare <= problem_.limits[size_t(rank)])) {
        if (forward) {
          state.taken[at] = true;
          start(rank, now, letter);
        } else {
          state.taken[at] = do_input(rank, now, letter.chunk);
        }
        return true;
      }
    }
    held += problem_.memory(letter.step);
    most = std::max(most, held);
  }
  return false;
}

void ListScheduler::decide(int rank, double now, const RankPolicy& policy) {
  RankState& state = states_[size_t(rank)];
  const bool at_end = state.forwards_left == 0;
  if (state.debt > (at_end ? policy.final_debt : policy.debt)) {
    do_weight(rank, now);
    return;
  }
  double next_arrival = kNever;
  const bool by_priority = policy.sequence.empty() || (at_end && policy.free_end);
  if (by_priority ? follow_priority(rank, now, policy, next_arrival)
                  : follow_sequence(rank, now, policy, next_arrival)) {
    return;
  }
  if (state.debt > 0 &&
      now + duration(rank, Step::weight) <= next_arrival + policy.tolerance + epsilon_) {
    do_weight(rank, now);
  } else {
    wake_[size_t(rank)] = next_arrival;
  }
}

Cost ListScheduler::run(const Policy& policy) {
  latency_ = problem_.latency * (1 - policy.evenness);
  durations_ = problem_.durations;
  for (size_t i = 0; i < durations_.size(); ++i) {
    const double even = mean_duration_ * (i % kSteps == size_t(Step::whole) ? 2 : 1);
    durations_[i] += policy.evenness * (even - durations_[i]);
  }
  const size_t chunks = size_t(problem_.chunks);
  for (size_t r = 0; r < states_.size(); ++r) {
    RankState& state = states_[r];
    state.free = state.held = 0;
    state.debt = 0;
    state.forwards_left = problem_.microbatches * problem_.chunks;
    state.forwards.assign(chunks, 0);
    state.inputs.assign(chunks, 0);
    state.weights.assign(chunks, 0);
    state.pending.clear();
    state.pending_begin = 0;
    state.forwards_run = state.inputs_run = state.wrapped = 0;
    state.next = 0;
    state.weights_run = state.weights_due = 0;
    state.taken.assign(policy.ranks[r].sequence.size(), false);
    words_[r].clear();
    wake_[r] = kNever;
  }
  forward_order_.clear();
  input_order_.clear();
  const auto outside = std::ptrdiff_t(problem_.microbatches);
  std::fill(forward_end_.begin(), forward_end_.end(), kNever);
  std::fill(forward_end_.begin(), forward_end_.begin() + outside, 0);
  std::fill(input_end_.begin(), input_end_.end(), kNever);
  std::fill(input_end_.end() - outside, input_end_.end(), 0);
  wake_[size_t(problem_.rank_of[0])] = 0;
  for (;;) {
    const auto next = std::min_element(wake_.begin(), wake_.end());
    if (*next == kNever) {
      break;
    }
    const auto rank = int(next - wake_.begin());
    decide(rank, *next, policy.ranks[size_t(rank)]);
  }
  const bool done = std::all_of(states_.begin(), states_.end(), [&](const RankState& state) {
    return std::all_of(state.weights.begin(), state.weights.end(),
                       [&](int count) { return count == problem_.microbatches; });
  });
  return done ? evaluator_.run(words_) : Cost{kNever, kNever};
}

}  // namespace pipetrain::schedule
