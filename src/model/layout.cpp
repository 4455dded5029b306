#include "model/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "pipetrain/error.h"

namespace pipetrain {

SlotLayout::SlotLayout(const std::vector<LayoutRow>& rows) {
  for (const LayoutRow& row : rows) {
    const size_t stride = aligned(row.bytes);
    rows_.push_back({bytes_, stride, row.count});
    bytes_ += static_cast<size_t>(row.count) * stride;
  }
}

size_t SlotLayout::offset(int row, int index) const {
  const Row& found = rows_.at(static_cast<size_t>(row));
  if (index < 0 || index >= found.count) {
    throw InternalError(
        fmt::format("row {} of a slot holds {} tensors, not number {}", row, found.count, index));
  }
  return found.start + static_cast<size_t>(index) * found.stride;
}

std::vector<LayoutRow> activation_layout(const GptConfig& config, const MicrobatchShape& shape,
                                         Precision precision, const StageLayers& layers,
                                         const SlotPolicy& policy) {
  const int attention = policy.recompute == Recompute::none ? layers.layers : 0;
  const int others = policy.recompute == Recompute::full ? 0 : layers.layers;
  const size_t hidden = message_bytes(config, shape, precision);
  const size_t statistics = static_cast<size_t>(shape.rows()) * static_cast<size_t>(config.heads) *
                            accumulator_bytes(precision);
  return {
      {"block input", hidden, std::max(layers.layers, 1)},
      {"qkv", 3 * hidden, attention},
      {"attention output", hidden, attention},
      {"middle residual", hidden, others},
      {"fc", 4 * hidden, others},
      {"log-sum-exp", statistics, attention},
      {"hidden gradient", hidden, layers.head ? 1 : 0},
  };
}

std::vector<LayoutRow> gradient_layout(const GptConfig& config, const MicrobatchShape& shape,
                                       Precision precision, const StageLayers& layers,
                                       const SlotPolicy& policy) {
  const size_t hidden = message_bytes(config, shape, precision);
  const bool all = policy.defer == Defer::all;
  // The last block before the head has its output's gradient in the activation slot.
  const int outputs = std::max(layers.layers - (layers.head ? 1 : 0), 0);
  const int gradients = all ? layers.layers : 0;
  const int attention = policy.recompute == Recompute::none ? 0 : layers.layers;
  const int others = policy.recompute == Recompute::full ? layers.layers : 0;
  return {
      {"gradient of the block output", hidden, all ? outputs : 0},
      {"gradient of the middle residual", hidden, gradients},
      {"gradient of fc", 4 * hidden, gradients},
      {"qkv, computed again", 3 * hidden, attention},
      {"attention output, computed again", hidden, all ? attention : 0},
      {"middle residual, computed again", hidden, others},
      {"fc, computed again", 4 * hidden, others},
  };
}

size_t activation_slot_bytes(const GptConfig& config, const MicrobatchShape& shape,
                             Precision precision, const StageLayers& layers,
                             const SlotPolicy& policy) {
  return SlotLayout(activation_layout(config, shape, precision, layers, policy)).bytes();
}

size_t gradient_slot_bytes(const GptConfig& config, const MicrobatchShape& shape,
                           Precision precision, const StageLayers& layers,
                           const SlotPolicy& policy) {
  return SlotLayout(gradient_layout(config, shape, precision, layers, policy)).bytes();
}

void MicrobatchShape::check(const GptConfig& config) const {
  if (batch < 1) {
    throw UsageError(fmt::format("--microbatch-size {}: must be at least 1", batch));
  }
  if (sequence < 1 || sequence > config.sequence) {
    throw UsageError(fmt::format("--sequence-length {}: must be 1 to {}, the model's positions",
                                 sequence, config.sequence));
  }
  constexpr int64_t limit = std::numeric_limits<int>::max();
  if (int64_t{batch} * sequence * config.heads > limit) {
    throw UsageError(fmt::format(
        "--microbatch-size {}: times --sequence-length {} and --heads {} must be at most {}", batch,
        sequence, config.heads, limit));
  }
}

size_t message_bytes(const GptConfig& config, const MicrobatchShape& shape, Precision precision) {
  return static_cast<size_t>(shape.rows()) * static_cast<size_t>(config.hidden) *
         element_bytes(precision);
}

}  // namespace pipetrain
