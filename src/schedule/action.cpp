#include "pipetrain/schedule/action.h"

#include <fmt/format.h>

namespace pipetrain::schedule {

bool is_compute(Kind kind) {
  return kind == Kind::forward || kind == Kind::backward || kind == Kind::backward_input ||
         kind == Kind::backward_weight;
}

bool is_backward(Kind kind) {
  return kind == Kind::backward || kind == Kind::backward_input;
}

bool is_send(Kind kind) {
  return kind == Kind::send_forward || kind == Kind::send_backward;
}

bool is_receive(Kind kind) {
  return kind == Kind::receive_forward || kind == Kind::receive_backward;
}

std::string to_string(const Action& action) {
  const auto text = [&](const char* letters) {
    return fmt::format("{}{}{}", action.stage, letters, action.microbatch);
  };
  switch (action.kind) {
    case Kind::forward:
      return text("F");
    case Kind::backward:
      return text("B");
    case Kind::backward_input:
      return text("I");
    case Kind::backward_weight:
      return text("W");
    case Kind::send_forward:
      return text("SEND_F");
    case Kind::receive_forward:
      return text("RECV_F");
    case Kind::send_backward:
      return text("SEND_B");
    case Kind::receive_backward:
      return text("RECV_B");
    case Kind::reduce_gradients:
      return fmt::format("{}REDUCE_GRAD", action.stage);
    case Kind::optimizer_step:
      return "OPTIMIZER_STEP";
  }
  return "?";
}

}  // namespace pipetrain::schedule
