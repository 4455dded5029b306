#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/model/parameters.h"
#include "pipetrain/model/stage.h"

namespace pipetrain::test {

using Values = std::map<std::string, std::vector<double>>;  // by parameter name, real shape

// Device memory with a pattern behind it that nobody may write to.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes);
  std::byte* data() const { return buffer_.data(); }
  size_t bytes() const { return buffer_.bytes() - alignment; }
  void fill(unsigned char value, const Stream& stream) const;
  void expect_intact(const std::string& what) const;

 private:
  Buffer buffer_;
};

enum class Backward { whole, split, split_late };  // split_late: all I of a step, then all W
enum class Stores { one, per_chunk };

// The chunks of a model on one device, with messages passed by hand: what an executor does, without
// schedule and channels. Messages and the workspace are filled with NaN between calls.
class Rig {
 public:
  Rig(const GptConfig& config, const MicrobatchShape& shape, Precision precision,
      const std::vector<StageLayers>& chunks, Stores stores = Stores::one,
      const SlotPolicy& policy = {});

  // Masters and weights in use; padding becomes 0.
  void set_weights(const Values& values);
  // inputs, targets: (M, B*T). Gradients are zeroed, then M micro-batches are accumulated.
  void run_step(const std::vector<int>& inputs, const std::vector<int>& targets, Backward backward);
  // Forward only, nothing kept; gradients are left as they are.
  void evaluate(const std::vector<int>& inputs, const std::vector<int>& targets);

  std::vector<double> losses() const;  // per micro-batch, scaled by 1 / valid targets of the step
  double loss() const;
  Values gradients() const;       // tied: both parts added
  Values head_gradients() const;  // tied: the head's part
  // Largest magnitude in the padding of all gradients.
  double padding() const;
  const GuardedBuffer& slot(size_t chunk, size_t microbatch) const {
    return slots_[chunk][microbatch];
  }
  const GuardedBuffer& gradient_slot(size_t chunk, size_t microbatch) const {
    return gradient_slots_[chunk][microbatch];
  }

 private:
  void load(const std::vector<int>& inputs, const std::vector<int>& targets);
  void forward(int microbatch, bool keep);
  void backward(int microbatch, Backward backward);
  void expect_intact() const;
  const ParameterStore& store_of(size_t chunk) const {
    return *stores_[stores_.size() == 1 ? 0 : chunk];
  }

  GptConfig config_;
  MicrobatchShape shape_;
  Precision precision_;
  std::vector<StageLayers> chunks_;
  SlotPolicy policy_;
  Stream stream_;
  std::vector<std::unique_ptr<Buffer>> store_memory_;
  std::vector<std::unique_ptr<ParameterStore>> stores_;
  std::unique_ptr<GuardedBuffer> workspace_memory_;
  std::unique_ptr<GptWorkspace, void (*)(GptWorkspace*)> workspace_{nullptr, nullptr};
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<std::vector<GuardedBuffer>> slots_;           // [chunk][micro-batch]
  std::vector<std::vector<GuardedBuffer>> gradient_slots_;  // [chunk][micro-batch]
  std::unique_ptr<GuardedBuffer> message_;
  std::unique_ptr<GuardedBuffer> next_message_;
  std::unique_ptr<Buffer> tokens_;
  std::unique_ptr<GuardedBuffer> losses_;
  std::unique_ptr<Buffer> scale_;
  StepData data_;
  int microbatches_ = 0;
};

// Every choice of what slots hold, the default first.
std::vector<SlotPolicy> all_policies();

// initial_values() of all parameters, with biases and layer norms moved off 0 and 1, so that every
// gradient path counts.
Values lively_weights(const GptConfig& config, uint64_t seed);

// Deterministic tokens in [0, vocabulary).
std::vector<int> some_tokens(size_t count, int vocabulary, uint32_t seed);

}  // namespace pipetrain::test
