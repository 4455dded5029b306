#pragma once

#include <compare>
#include <string>

namespace pipetrain::schedule {

// What one entry of a rank's list does. The letters are PyTorch's.
enum class Kind {
  forward,           // F
  backward,          // B: input and weight gradient
  backward_input,    // I: gradient of the stage's input
  backward_weight,   // W: gradient of the stage's weights
  send_forward,      // SEND_F: output of F(stage) to the owner of stage + 1
  receive_forward,   // RECV_F: input of F(stage) from the owner of stage - 1
  send_backward,     // SEND_B: input gradient of B(stage) to the owner of stage - 1
  receive_backward,  // RECV_B: output gradient of B(stage) from the owner of stage + 1
  reduce_gradients,  // REDUCE_GRAD: over the replicas of a stage; microbatch is unused
  optimizer_step,    // OPTIMIZER_STEP: stage and microbatch are unused (pipedream: the stage's)
};

bool is_compute(Kind kind);   // F, B, I or W
bool is_backward(Kind kind);  // B or I: what yields the gradient of the stage's input
bool is_send(Kind kind);
bool is_receive(Kind kind);

// One entry of a schedule. `stage` is global (0 is the embedding's), `microbatch` counts from 0
// within the step. `overlaps_next` marks the first of an overlapped pair: this entry and the next
// one of the same rank run side by side and deliver their results at their common end.
struct Action {
  Kind kind = Kind::forward;
  int stage = 0;
  int microbatch = 0;
  bool overlaps_next = false;

  friend auto operator<=>(const Action&, const Action&) = default;
};

// "2F0", "1I3", "0SEND_F1", "1REDUCE_GRAD", "OPTIMIZER_STEP".
std::string to_string(const Action& action);

}  // namespace pipetrain::schedule
