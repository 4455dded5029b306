#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/model/config.h"
#include "pipetrain/model/parameters.h"
#include "pipetrain/model/slot_policy.h"

namespace pipetrain {

// What the executor drives: one stage's computation on one rank. All pointers are device memory;
// all calls only submit work to `stream`. `slot` is an activation slot, `gradient_slot` a gradient
// slot. A message is the hidden state of one micro-batch: (B, T, C) in the element type.
class Stage {
 public:
  virtual ~Stage() = default;

  // F. load_input copies the message into the slot (stages that embed have none and are not
  // called); after it the message may be overwritten. forward writes the output message (nullptr on
  // the stage with the head). keep == false (evaluation): no gradient of the head is computed.
  virtual void load_input(std::byte* slot, const std::byte* message, const Stream& stream) = 0;
  virtual void forward(int microbatch, std::byte* slot, std::byte* output, bool keep,
                       const Stream& stream) = 0;

  // B. load_output_gradient copies the message (the stage with the head has none and is not
  // called) into the gradient slot, or, where W will not read it, into the workspace. gradient_slot
  // is nullptr for a whole backward, and for a stage whose slot has no bytes. input_gradient is
  // nullptr on the stage that embeds.
  virtual void load_output_gradient(std::byte* slot, std::byte* gradient_slot,
                                    const std::byte* message, const Stream& stream) = 0;
  // The whole backward: input and weight gradients, with one layer's gradients at a time, and what
  // is computed again, in the workspace.
  virtual void backward(int microbatch, std::byte* slot, std::byte* input_gradient,
                        const Stream& stream) = 0;
  virtual void backward_input(int microbatch, std::byte* slot, std::byte* gradient_slot,
                              std::byte* input_gradient, const Stream& stream) = 0;
  virtual void backward_weight(int microbatch, std::byte* slot, std::byte* gradient_slot,
                               const Stream& stream) = 0;
};

// Tokens, targets and losses of one step on one rank; M micro-batches of B*T tokens.
struct StepData {
  const int* inputs = nullptr;   // (M, B*T); on ranks that embed
  const int* targets = nullptr;  // (M, B*T), -1 is ignored; on ranks with the head
  // Accumulator type: 1 / valid targets of the global batch, times the updates of the step.
  const std::byte* loss_scale = nullptr;
  std::byte* losses = nullptr;  // (M) accumulator type: loss of each micro-batch, scaled
};

struct MicrobatchShape {
  int batch = 1;     // B
  int sequence = 1;  // T
  int rows() const { return batch * sequence; }
  // Throws UsageError naming the flag unless both are positive, the model has that many positions
  // and rows times heads, the largest count of a kernel's loop, fits into an int.
  void check(const GptConfig& config) const;
};

// A tensor of a slot: `count` of them, one per layer unless the name says otherwise. Each is
// aligned, so a slot takes the sum of count * aligned(bytes).
struct LayoutRow {
  std::string name;
  size_t bytes = 0;
  int count = 0;
};

// What a slot of the chunk `layers` holds, tensor by tensor; a row that the policy leaves out has a
// count of 0.
//   activation slot, F to B (or W): per layer block input and, unless they are computed again, qkv,
//     attention output, middle residual, fc, log-sum-exp; once: the hidden gradient, with the head
//   gradient slot, I to W: per layer gradients of the block output, the middle residual and fc
//     (Defer::all), and what I computed again and W needs. The gradient of qkv replaces qkv,
//     wherever that lies; with Defer::cheap the gradient of fc replaces fc. With the head the
//     hidden gradient in the activation slot is the last layer's
// A chunk without layers holds its input, and no gradient.
std::vector<LayoutRow> activation_layout(const GptConfig& config, const MicrobatchShape& shape,
                                         Precision precision, const StageLayers& layers,
                                         const SlotPolicy& policy);
std::vector<LayoutRow> gradient_layout(const GptConfig& config, const MicrobatchShape& shape,
                                       Precision precision, const StageLayers& layers,
                                       const SlotPolicy& policy);

// Sizes of the slots of one chunk and of the workspace that the chunks of a rank share.
size_t activation_slot_bytes(const GptConfig& config, const MicrobatchShape& shape,
                             Precision precision, const StageLayers& layers,
                             const SlotPolicy& policy);
size_t gradient_slot_bytes(const GptConfig& config, const MicrobatchShape& shape,
                           Precision precision, const StageLayers& layers,
                           const SlotPolicy& policy);
enum class WorkspaceUse { everything, forward };  // forward: smaller
size_t workspace_bytes(const GptConfig& config, const MicrobatchShape& shape, Precision precision,
                       const std::vector<StageLayers>& stages, const SlotPolicy& policy,
                       WorkspaceUse use = WorkspaceUse::everything);
size_t message_bytes(const GptConfig& config, const MicrobatchShape& shape, Precision precision);

// What GPT stages of one rank share: the workspace, the matmul handle and its plans, the policy.
// Work of stages that share it must be submitted to one stream. Between load_output_gradient and
// the backward or input gradient that it is for no other work of these stages may be submitted.
// With WorkspaceUse::forward the stages may be called for F alone.
//
// An F may run beside a B or I of the same rank, whatever their stages, on another stream, if each
// has a workspace of its own. Nothing that one of them writes is touched by the other:
//   F     its activation slot and outgoing message; with the head the loss of its micro-batch, and
//         the gradients of ln_f and of the head's matrix, which with a tied head are the head's
//         part, a buffer of its own also where the rank embeds too
//   B, I  its activation and gradient slot, its outgoing message; the gradients of blocks and of
//         wte and wpe, of a tied wte the embedding's part
// Both read weights and tokens, which change between steps only.
class GptWorkspace;
std::unique_ptr<GptWorkspace, void (*)(GptWorkspace*)> make_gpt_workspace(
    const GptConfig& config, const MicrobatchShape& shape, Precision precision,
    const std::vector<StageLayers>& stages, const SlotPolicy& policy, Region& region,
    WorkspaceUse use = WorkspaceUse::everything);

// The GPT chunk `layers`, with its weights in `store`. `data` and `workspace` must outlive it.
std::unique_ptr<Stage> make_gpt_stage(const GptConfig& config, const MicrobatchShape& shape,
                                      Precision precision, const StageLayers& layers,
                                      const ParameterStore& store, const StepData& data,
                                      GptWorkspace& workspace);

}  // namespace pipetrain
