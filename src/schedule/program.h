#pragma once

#include <vector>

#include "pipetrain/schedule/schedule.h"

// What lower() works on: the lists of all ranks with every hand-off between two computations as a
// message on a channel. Internal to lower().
namespace pipetrain::schedule {

// Places in a rank's program are indices into Program::ranks[rank].
struct Message {
  int channel = -1;
  int producer = -1;  // place on the channel's source
  int consumer = -1;  // place on its destination
  int gate = -1;  // place on its destination that must have started before the transfer; -1: none
};

struct ProgramEntry {
  Action action;
  int input = -1;   // message, or -1
  int output = -1;  // message, or -1
};

struct Program {
  std::vector<std::vector<ProgramEntry>> ranks;
  std::vector<Channel> channels;
  std::vector<Message> messages;
  std::vector<std::vector<int>> channel_messages;  // [channel][n]: n-th message, in FIFO order
  std::vector<std::vector<int>> incoming;          // [rank]: channels from other ranks

  bool stays(int channel) const {
    return channels[channel].source == channels[channel].destination;
  }
};

// `schedule` must be valid. Adds REDUCE_GRAD and OPTIMIZER_STEP entries unless it is forward only.
Program make_program(const Schedule& schedule);

// An element of the global order: a computation of a rank (or the first of an overlapped pair), or
// the transfer of a message.
struct Node {
  int rank = -1;  // -1: a transfer
  int index = 0;  // place in the rank's program, or the message
};

struct GlobalOrder {
  std::vector<Node> nodes;
  double makespan = 0;
  std::vector<int> peak_outgoing;  // [channel]: most outgoing slots in use at once
  std::vector<char> delayed;       // [channel]: whether a writer ever waited for an outgoing slot
  bool complete = false;           // false: deadlock, because outgoing slots are too few
};

// Small enough that all hops of a step together stay below one computation.
constexpr double order_latency = 1.0 / (1 << 20);

// Puts all computations and transfers into one order in which everything stands after what it
// depends on: of the nodes that may run, the one with the least start time, F = I = W = 1 per
// chunk and order_latency. `outgoing`: slots per channel.
GlobalOrder make_order(const Program& program, const std::vector<int>& outgoing);

}  // namespace pipetrain::schedule
