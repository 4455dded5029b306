#include "model/layout.h"

#include <gtest/gtest.h>

#include "pipetrain/error.h"
#include "pipetrain/model/stage.h"

namespace pipetrain {
namespace {

size_t bytes_of(const std::vector<LayoutRow>& rows, const std::string& without = "") {
  size_t bytes = 0;
  for (const LayoutRow& row : rows) {
    bytes += row.name == without ? 0 : static_cast<size_t>(row.count) * aligned(row.bytes);
  }
  return bytes;
}

TEST(Layout, ABf16LayerKeeps20BytesPerTokenAndChannel) {
  for (const char* name : {"gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m"}) {
    const GptConfig config = named_model(name);
    const MicrobatchShape shape{4, 1024};
    const auto unit = static_cast<size_t>(shape.rows()) * static_cast<size_t>(config.hidden);
    const StageLayers middle{1, 3, false, false};
    const auto rows = activation_layout(config, shape, Precision::bf16, middle);
    EXPECT_LE(bytes_of(rows, "log-sum-exp"), 3 * 20 * unit);
    EXPECT_EQ(activation_slot_bytes(config, shape, Precision::bf16, middle), bytes_of(rows));
    // The log-sum-exp is 4 bytes per head of at least 64 channels.
    EXPECT_LE(bytes_of(rows), 3 * unit * 20 + 3 * unit * 4 / 64);
  }
}

TEST(Layout, ADeferredBf16WeightGradientKeeps12BytesPerTokenAndChannel) {
  for (const char* name : {"gpt2-124m", "gpt2-1558m"}) {
    const GptConfig config = named_model(name);
    const MicrobatchShape shape{4, 1024};
    const auto unit = static_cast<size_t>(shape.rows()) * static_cast<size_t>(config.hidden);
    EXPECT_LE(gradient_slot_bytes(config, shape, Precision::bf16, {1, 3, false, false}),
              3 * 12 * unit);
    // With the head the hidden gradient lies in the activation slot: once, not twice.
    EXPECT_LE(gradient_slot_bytes(config, shape, Precision::bf16, {1, 3, false, true}),
              3 * 12 * unit - 2 * unit);
    EXPECT_EQ(
        activation_slot_bytes(config, shape, Precision::bf16, {1, 3, false, true}),
        activation_slot_bytes(config, shape, Precision::bf16, {1, 3, false, false}) + 2 * unit);
  }
}

// Fault 32: all logits of a micro-batch are kept.
TEST(Layout, TheWorkspaceHoldsLogitsOfAChunkOfRowsOnly) {
  const GptConfig config = named_model("gpt2-124m");
  const std::vector<StageLayers> last = {{11, 1, false, true}};
  const MicrobatchShape shape{64, 1024};
  const size_t all_logits = size_t{64} * 1024 * 50304 * 2;
  EXPECT_LT(workspace_bytes(config, shape, Precision::bf16, last), all_logits / 2);
  const MicrobatchShape twice{128, 1024};
  const size_t chunk_logits = size_t{1024} * 50304 * 2;
  // Another 64 sequences need hidden states, not logits: 20 bf16 values per token and channel.
  EXPECT_LT(workspace_bytes(config, twice, Precision::bf16, last) -
                workspace_bytes(config, shape, Precision::bf16, last),
            size_t{64} * 1024 * 768 * 40 + chunk_logits);
}

TEST(Layout, TensorsOfASlotAreAlignedAndDoNotOverlap) {
  GptConfig config;
  config.layers = 4;
  config.hidden = 24;
  config.heads = 3;
  config.vocabulary = 7;
  config.sequence = 5;
  const auto rows = activation_layout(config, {1, 5}, Precision::fp32, {0, 3, true, true});
  const SlotLayout layout(rows);
  size_t end = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int index = 0; index < rows[row].count; ++index) {
      const size_t offset = layout.offset(static_cast<int>(row), index);
      EXPECT_EQ(offset % alignment, 0U);
      EXPECT_GE(offset, end);
      end = offset + rows[row].bytes;
    }
    EXPECT_THROW(layout.offset(static_cast<int>(row), rows[row].count), InternalError);
  }
  EXPECT_LE(end, layout.bytes());
}

}  // namespace
}  // namespace pipetrain
