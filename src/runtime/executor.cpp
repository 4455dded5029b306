#include "pipetrain/runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "pipetrain/error.h"

namespace pipetrain {

using schedule::Kind;
using schedule::LoweredAction;

Executor::StepEvents::StepEvents(size_t entries) : begin(Event::Timing::on) {
  started.reserve(entries);
  ended.reserve(entries);
  for (size_t i = 0; i < entries; ++i) {
    started.emplace_back(Event::Timing::on);
    ended.emplace_back(Event::Timing::on);
  }
}

Executor::Executor(const schedule::LoweredSchedule& schedule, int rank, Stages stages,
                   Exchange& exchange, Pool& activations, Pool& gradients, const Stream& compute,
                   Mode mode, StepHooks hooks, Watchdog* watchdog, Stages beside)
    : schedule_(schedule),
      list_(schedule.ranks.at(size_t(rank))),
      rank_(rank),
      exchange_(exchange),
      activations_(activations),
      gradients_(gradients),
      compute_(compute),
      main_{&compute, std::move(stages)},
      keep_(mode == Mode::training),
      hooks_(std::move(hooks)),
      watchdog_(watchdog),
      events_{StepEvents(list_.size()), StepEvents(list_.size())} {
  if (schedule.has_pairs(rank)) {
    beside_ = {&second_stream_.emplace(), std::move(beside)};
  }
  set_clock();
  if (watchdog_ == nullptr) {
    return;
  }
  for (StepEvents& events : events_) {
    for (size_t i = 0; i < list_.size(); ++i) {
      const size_t number = watchdog_->add(events.ended[i], describe(list_[i]));
      if (i == 0) {
        events.first_watchdog_item = number;
      }
    }
  }
}

// What the watchdog prints: who does what, and whom it waits for.
std::string Executor::describe(const LoweredAction& entry) const {
  const schedule::Action& action = entry.action;
  std::string text =
      fmt::format("rank {}: {}{} (stage {}, micro-batch {})", rank_, keep_ ? "" : "forward only, ",
                  schedule::to_string(action), action.stage, action.microbatch);
  const auto channel = [&](const schedule::SlotRef& slot) -> const schedule::Channel& {
    return schedule_.channels[size_t(slot.channel)];
  };
  if (is_send(action.kind)) {
    text += fmt::format(" waits for rank {} to receive", channel(entry.message).destination);
  } else if (is_receive(action.kind)) {
    text += fmt::format(" waits for rank {} to send", channel(entry.message).source);
  } else if (action.kind == Kind::optimizer_step &&
             (schedule_.update != schedule::Update::every_backward ||
              action.microbatch + 1 == schedule_.placement.microbatches())) {
    text =
        fmt::format("rank {}: OPTIMIZER_STEP waits for the norms and losses of all ranks", rank_);
  }
  return text;
}

Stage& Executor::stage_of(const LoweredAction& entry, const Lane& lane) {
  return *lane.stages.at(entry.action.stage).at(size_t(entry.weights));
}

Tag Executor::tag(const LoweredAction& entry) const {
  return {step_, entry.action.stage, entry.action.microbatch};
}

void Executor::run_step(int64_t step) {
  step_ = step;
  StepEvents& events = this->events(step);
  if (watchdog_ != nullptr) {
    watchdog_->begin_step();
  }
  events.begin.record(compute_, {step, -1, -1});
  for (size_t i = 0; i < list_.size(); ++i) {
    const LoweredAction& entry = list_[i];
    const bool opens_pair = entry.action.overlaps_next;
    const bool closes_pair = i > 0 && list_[i - 1].action.overlaps_next;
    if (opens_pair) {
      fork_.record(compute_, tag(entry));
      fork_.wait(*beside_.stream, tag(entry));
    }
    const bool beside = (opens_pair || closes_pair) && entry.action.kind == Kind::forward;
    run(entry, beside ? beside_ : main_, events.started[i], events.ended[i]);
    if (closes_pair) {
      const size_t forward = beside ? i : i - 1;
      events.ended[forward].wait(compute_, tag(list_[forward]));
    }
    if (watchdog_ != nullptr) {
      watchdog_->submitted(events.first_watchdog_item + i);
    }
  }
}

void Executor::run(const LoweredAction& entry, const Lane& lane, Event& started, Event& ended) {
  const schedule::Action& action = entry.action;
  // A message bears the tag of the action that made it.
  const Tag from_previous = {step_, action.stage - 1, action.microbatch};
  const Tag from_next = {step_, action.stage + 1, action.microbatch};
  const Event* gate = nullptr;
  Tag gate_tag;
  if (entry.gate >= 0) {
    gate = &events(step_).started[size_t(entry.gate)];
    gate_tag = tag(list_[size_t(entry.gate)]);
  }
  switch (action.kind) {
    case Kind::send_forward:
    case Kind::send_backward:
      exchange_.send(entry.message, tag(entry), started, ended);
      return;
    case Kind::receive_forward:
      exchange_.receive(entry.message, from_previous, gate, gate_tag, started, ended);
      return;
    case Kind::receive_backward:
      exchange_.receive(entry.message, from_next, gate, gate_tag, started, ended);
      return;
    case Kind::forward:
      forward(entry, lane, started, ended);
      return;
    case Kind::backward:
    case Kind::backward_input:
      backward(entry, started, ended);
      return;
    case Kind::backward_weight:
      backward_weight(entry, started, ended);
      return;
    case Kind::reduce_gradients:
      started.record(compute_, tag(entry));
      hooks_.reduce_gradients(action.stage);
      break;
    case Kind::optimizer_step:
      started.record(compute_, tag(entry));
      hooks_.optimizer_step(entry);
      break;
  }
  ended.record(compute_, tag(entry));
}

void Executor::forward(const LoweredAction& entry, const Lane& lane, Event& started, Event& ended) {
  const schedule::Action& action = entry.action;
  const Stream& stream = *lane.stream;
  Stage& stage = stage_of(entry, lane);
  const Tag input_tag = {step_, action.stage - 1, action.microbatch};
  std::byte* slot = activations_.take(entry.activation_slot);
  if (entry.input.channel >= 0) {
    stage.load_input(slot, exchange_.begin_read(entry.input, input_tag, stream), stream);
    exchange_.end_read(entry.input, input_tag, stream);
  }
  std::byte* output = nullptr;
  if (entry.output.channel >= 0) {
    output = exchange_.begin_write(entry.output, stream);
  }
  started.record(stream, tag(entry));
  stage.forward(action.microbatch, slot, output, keep_, stream);
  ended.record(stream, tag(entry));  // before the message may leave
  if (output != nullptr) {
    exchange_.end_write(entry.output, tag(entry), stream);
  }
  if (!keep_) {
    activations_.give_back(entry.activation_slot);
  }
}

void Executor::backward(const LoweredAction& entry, Event& started, Event& ended) {
  const schedule::Action& action = entry.action;
  Stage& stage = stage_of(entry, main_);
  const bool whole = action.kind == Kind::backward;
  const Tag gradient_tag = {step_, action.stage + 1, action.microbatch};
  std::byte* slot = activations_.use(entry.activation_slot);
  std::byte* gradient_slot =
      entry.gradient_slot < 0 ? nullptr : gradients_.take(entry.gradient_slot);
  if (entry.input.channel >= 0) {
    const std::byte* message = exchange_.begin_read(entry.input, gradient_tag, compute_);
    stage.load_output_gradient(slot, gradient_slot, message, compute_);
    exchange_.end_read(entry.input, gradient_tag, compute_);
  }
  std::byte* input_gradient = nullptr;
  if (entry.output.channel >= 0) {
    input_gradient = exchange_.begin_write(entry.output, compute_);
  }
  started.record(compute_, tag(entry));
  if (whole) {
    stage.backward(action.microbatch, slot, input_gradient, compute_);
    activations_.give_back(entry.activation_slot);
  } else {
    stage.backward_input(action.microbatch, slot, gradient_slot, input_gradient, compute_);
  }
  ended.record(compute_, tag(entry));
  if (input_gradient != nullptr) {
    exchange_.end_write(entry.output, tag(entry), compute_);
  }
}

void Executor::backward_weight(const LoweredAction& entry, Event& started, Event& ended) {
  const schedule::Action& action = entry.action;
  std::byte* slot = activations_.use(entry.activation_slot);
  std::byte* gradient_slot =
      entry.gradient_slot < 0 ? nullptr : gradients_.use(entry.gradient_slot);
  started.record(compute_, tag(entry));
  stage_of(entry, main_).backward_weight(action.microbatch, slot, gradient_slot, compute_);
  ended.record(compute_, tag(entry));
  if (gradient_slot != nullptr) {
    gradients_.give_back(entry.gradient_slot);
  }
  activations_.give_back(entry.activation_slot);
}

void Executor::wait(int64_t step) const {
  for (const Event& ended : events(step).ended) {
    ended.synchronize();
  }
}

// An event falls between two readings of the host's clock: of several tries the one counts whose
// readings lie closest together.
void Executor::set_clock() {
  constexpr int tries = 8;
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  clock_.record(compute_, {});
  Event probe(Event::Timing::on);
  double closest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    const double before = now();
    probe.record(compute_, {});
    probe.synchronize();
    const double after = now();
    if (after - before < closest) {
      closest = after - before;
      clock_seconds_ = (before + after) / 2 - probe.milliseconds_since(clock_) / 1000;
    }
  }
}

RankTrace Executor::trace(int64_t step) const {
  const StepEvents& events = this->events(step);
  if (events.begin.tag().step != step) {
    throw InternalError(fmt::format("executor: the times of step {} are gone", step));
  }
  RankTrace trace;
  trace.start = clock_seconds_ + events.begin.milliseconds_since(clock_) / 1000;
  for (size_t i = 0; i < list_.size(); ++i) {
    const schedule::Action& action = list_[i].action;
    events.ended[i].synchronize();  // of a transfer: the peer may know its end before this rank
    const schedule::Interval interval = {action, events.started[i].milliseconds_since(events.begin),
                                         events.ended[i].milliseconds_since(events.begin)};
    if (is_compute(action.kind)) {
      trace.compute.push_back(interval);
    } else if (is_send(action.kind) || is_receive(action.kind)) {
      trace.transfers.push_back(interval);
    }
    trace.end_of_step = std::max(trace.end_of_step, interval.end);
  }
  return trace;
}

}  // namespace pipetrain
