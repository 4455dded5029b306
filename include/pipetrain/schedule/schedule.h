#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/action.h"
#include "pipetrain/schedule/placement.h"

namespace pipetrain::schedule {

// When the weights change. An asynchronous schedule keeps several versions of them.
enum class Update {
  step,            // once, after all backwards of the step
  every_backward,  // pipedream: a stage after each of its backwards
  delayed,         // pipedream-2bw: once per step, applied with a delay of one
};

// A compute-only schedule: what a generator returns, what CSV files hold, what plan draws.
// `ranks[r]` is rank r's list of F, B, I and W in execution order.
struct Schedule {
  std::string name;
  Placement placement;
  std::vector<std::vector<Action>> ranks;
  Update update = Update::step;
  bool forward_only = false;               // there are no backwards: evaluation, generation
  std::vector<std::string> warnings = {};  // of the generator; validate() hands them on
};

// A buffer of a channel. channel < 0: there is none (the input of stage 0, say).
struct SlotRef {
  int channel = -1;
  int slot = -1;
};

enum class Direction { forward, backward };

// A directed edge between two ranks for one direction of data. Messages pass in FIFO order.
// source == destination is a hand-off inside a rank: nothing is sent, producers write into the
// outgoing slots and consumers read from them; incoming_slots is 0.
struct Channel {
  int source = 0;
  int destination = 0;
  Direction direction = Direction::forward;
  int outgoing_slots = 0;
  int incoming_slots = 0;
};

// An entry of a lowered list: the action and every buffer it touches, all decided here, so that
// who walks the list does no arithmetic.
struct LoweredAction {
  Action action;

  // Sends: the outgoing slot read. Receives: the incoming slot written.
  SlotRef message;
  // Receives: index in this rank's list of the compute entry that must have started before the
  // transfer may; -1: none.
  int gate = -1;

  // F: activation from the previous stage. B, I: gradient from the next stage. An incoming slot,
  // or the outgoing slot of a hand-off inside the rank. The consumer copies it at its start and
  // frees it.
  SlotRef input;
  // F: activation for the next stage. B, I: gradient for the previous stage. An outgoing slot; the
  // writer waits until it is free.
  SlotRef output;
  // Index into this rank's activation pool: taken by F, given back by B or W. -1: none is used.
  int activation_slot = -1;
  // Index into this rank's gradient pool: taken by I, given back by W. -1: none is used, as where
  // the stage's I leaves nothing to its W.
  int gradient_slot = -1;
  // Slot of the rank's weight versions: 0 holds the current weights, the others hold older ones. F,
  // B, I and W: the version they use. OPTIMIZER_STEP: before it changes the current weights it
  // copies them to this slot; 0: no action needs them any more.
  int weights = 0;
};

// The program of all ranks. `order` is the one global order the lists were cut from: pairs (rank,
// index into ranks[rank]); a transfer stands as its send directly followed by its receive. Running
// everything one at a time in this order never blocks.
struct LoweredSchedule {
  std::string name;
  Placement placement;
  std::vector<Channel> channels;
  std::vector<std::vector<LoweredAction>> ranks;
  std::vector<int> activation_slots;  // per rank: the size of its pool = the schedule's peak
  std::vector<int> gradient_slots;    // per rank
  std::vector<bool> keeps_gradients;  // per stage: whether I and W have a gradient slot
  struct Position {
    int rank = 0;
    int index = 0;
  };
  std::vector<Position> order;
  Update update = Update::step;
  bool forward_only = false;
  std::vector<int> weight_versions = {};  // per rank: slots of weights, the current ones included

  bool has_pairs(int rank) const;  // overlapped ones
};

}  // namespace pipetrain::schedule
