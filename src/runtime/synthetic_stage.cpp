#include "pipetrain/runtime/synthetic_stage.h"

#include <cmath>

#include "kernels/occupy.h"
#include "pipetrain/device/check.h"

namespace pipetrain {

using schedule::Kind;

SyntheticStage::SyntheticStage(const std::vector<schedule::Interval>& planned, int stage,
                               int microbatches, size_t message_bytes)
    : message_bytes_(message_bytes) {
  nanoseconds_.fill(std::vector<int64_t>(size_t(microbatches), 0));
  for (const schedule::Interval& interval : planned) {
    const schedule::Action& action = interval.action;
    if (action.stage == stage) {
      nanoseconds_.at(size_t(action.kind)).at(size_t(action.microbatch)) =
          std::llround((interval.end - interval.start) * 1e6);
    }
  }
}

void SyntheticStage::occupy(Kind kind, int microbatch, const Stream& stream) const {
  kernels::occupy(nanoseconds_[size_t(kind)].at(size_t(microbatch)), stream.get());
}

void SyntheticStage::copy(std::byte* to, const std::byte* from, const Stream& stream) const {
  check(cudaMemcpyAsync(to, from, message_bytes_, cudaMemcpyDeviceToDevice, stream.get()),
        "cudaMemcpyAsync");
}

void SyntheticStage::load_input(std::byte* slot, const std::byte* message, const Stream& stream) {
  copy(slot, message, stream);
}

void SyntheticStage::forward(int microbatch, std::byte* slot, std::byte* output, bool,
                             const Stream& stream) {
  occupy(Kind::forward, microbatch, stream);
  check(cudaMemsetAsync(slot, microbatch & 0x7f, message_bytes_, stream.get()), "cudaMemsetAsync");
  if (output != nullptr) {
    copy(output, slot, stream);
  }
}

void SyntheticStage::load_output_gradient(std::byte* slot, std::byte* gradient_slot,
                                          const std::byte* message, const Stream& stream) {
  copy(gradient_slot != nullptr ? gradient_slot : slot, message, stream);
}

void SyntheticStage::backward(int microbatch, std::byte* slot, std::byte* input_gradient,
                              const Stream& stream) {
  occupy(Kind::backward, microbatch, stream);
  if (input_gradient != nullptr) {
    copy(input_gradient, slot, stream);
  }
}

void SyntheticStage::backward_input(int microbatch, std::byte* slot, std::byte* gradient_slot,
                                    std::byte* input_gradient, const Stream& stream) {
  occupy(Kind::backward_input, microbatch, stream);
  copy(gradient_slot, slot, stream);
  if (input_gradient != nullptr) {
    copy(input_gradient, gradient_slot, stream);
  }
}

void SyntheticStage::backward_weight(int microbatch, std::byte*, std::byte*, const Stream& stream) {
  occupy(Kind::backward_weight, microbatch, stream);
}

}  // namespace pipetrain
