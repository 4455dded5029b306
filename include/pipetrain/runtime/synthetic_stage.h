#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipetrain/model/stage.h"
#include "pipetrain/schedule/simulate.h"

namespace pipetrain {

// A stage that computes nothing: it keeps its stream busy for as long as was planned and moves
// messages as a real stage does, into slots and out of them. Each part of an overlapped pair takes
// the pair's time, side by side with the other. On the host it takes no core. Slots of both pools
// have the size of a message.
class SyntheticStage final : public Stage {
 public:
  // `planned`: what the rank does, in milliseconds; the stage takes the times of its own entries
  // from it.
  SyntheticStage(const std::vector<schedule::Interval>& planned, int stage, int microbatches,
                 size_t message_bytes);

  void load_input(std::byte* slot, const std::byte* message, const Stream& stream) override;
  void forward(int microbatch, std::byte* slot, std::byte* output, bool keep,
               const Stream& stream) override;
  void load_output_gradient(std::byte* slot, std::byte* gradient_slot, const std::byte* message,
                            const Stream& stream) override;
  void backward(int microbatch, std::byte* slot, std::byte* input_gradient,
                const Stream& stream) override;
  void backward_input(int microbatch, std::byte* slot, std::byte* gradient_slot,
                      std::byte* input_gradient, const Stream& stream) override;
  void backward_weight(int microbatch, std::byte* slot, std::byte* gradient_slot,
                       const Stream& stream) override;

 private:
  void occupy(schedule::Kind kind, int microbatch, const Stream& stream) const;
  void copy(std::byte* to, const std::byte* from, const Stream& stream) const;

  size_t message_bytes_;
  std::array<std::vector<int64_t>, 4> nanoseconds_;  // of F, B, I, W; by micro-batch
};

}  // namespace pipetrain
