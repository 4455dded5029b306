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
    const auto rows = activation_layout(config, shape, Precision::bf16, middle, {});
    EXPECT_LE(bytes_of(rows, "log-sum-exp"), 3 * 20 * unit);
    EXPECT_EQ(activation_slot_bytes(config, shape, Precision::bf16, middle, {}), bytes_of(rows));
    // The log-sum-exp is 4 bytes per head of at least 64 channels.
    EXPECT_LE(bytes_of(rows), 3 * unit * 20 + 3 * unit * 4 / 64);
  }
}

TEST(Layout, ADeferredBf16WeightGradientKeeps12BytesPerTokenAndChannel) {
  for (const char* name : {"gpt2-124m", "gpt2-1558m"}) {
    const GptConfig config = named_model(name);
    const MicrobatchShape shape{4, 1024};
    const auto unit = static_cast<size_t>(shape.rows()) * static_cast<size_t>(config.hidden);
    EXPECT_LE(gradient_slot_bytes(config, shape, Precision::bf16, {1, 3, false, false}, {}),
              3 * 12 * unit);
    // With the head the hidden gradient lies in the activation slot: once, not twice.
    EXPECT_LE(gradient_slot_bytes(config, shape, Precision::bf16, {1, 3, false, true}, {}),
              3 * 12 * unit - 2 * unit);
    EXPECT_EQ(
        activation_slot_bytes(config, shape, Precision::bf16, {1, 3, false, true}, {}),
        activation_slot_bytes(config, shape, Precision::bf16, {1, 3, false, false}, {}) + 2 * unit);
  }
}

// Bytes per token, channel and layer in bf16, log-sum-exp left out.
TEST(Layout, KeepsLessWithRecomputeAndDefersLessWhereThatIsCheap) {
  const GptConfig config = named_model("gpt2-1558m");
  const MicrobatchShape shape{4, 1024};
  const StageLayers middle{1, 3, false, false};
  const size_t unit = 3 * static_cast<size_t>(shape.rows()) * static_cast<size_t>(config.hidden);
  const struct {
    SlotPolicy policy;
    size_t activation;  // F to B, or to W
    size_t gradient;    // I to W
  } cases[] = {
      {{Recompute::none, Defer::all}, 20, 12},      {{Recompute::none, Defer::cheap}, 20, 0},
      {{Recompute::attention, Defer::all}, 12, 20}, {{Recompute::attention, Defer::cheap}, 12, 6},
      {{Recompute::full, Defer::all}, 2, 30},       {{Recompute::full, Defer::cheap}, 2, 16},
  };
  for (const auto& [policy, activation, gradient] : cases) {
    SCOPED_TRACE(to_string(policy.recompute) + " " + to_string(policy.defer));
    EXPECT_EQ(
        bytes_of(activation_layout(config, shape, Precision::bf16, middle, policy), "log-sum-exp"),
        activation * unit);
    EXPECT_EQ(bytes_of(gradient_layout(config, shape, Precision::bf16, middle, policy)),
              gradient * unit);
    // One layer's recomputed values are in the workspace, whatever the number of layers.
    const size_t again = (20 - activation) * unit / 3;
    const size_t statistics = policy.recompute == Recompute::none
                                  ? 0
                                  : size_t{4} * 4096 * static_cast<size_t>(config.heads);
    const size_t fc_gradient = policy.defer == Defer::all ? 0 : 8 * unit / 3;
    EXPECT_EQ(workspace_bytes(config, shape, Precision::bf16, {middle}, policy),
              workspace_bytes(config, shape, Precision::bf16, {middle}, {}) + again + statistics -
                  fc_gradient);
  }
}

// Fault 32: all logits of a micro-batch are kept.
TEST(Layout, TheWorkspaceHoldsLogitsOfAChunkOfRowsOnly) {
  const GptConfig config = named_model("gpt2-124m");
  const std::vector<StageLayers> last = {{11, 1, false, true}};
  const MicrobatchShape shape{64, 1024};
  const size_t all_logits = size_t{64} * 1024 * 50304 * 2;
  EXPECT_LT(workspace_bytes(config, shape, Precision::bf16, last, {}), all_logits / 2);
  const MicrobatchShape twice{128, 1024};
  const size_t chunk_logits = size_t{1024} * 50304 * 2;
  // Another 64 sequences need hidden states, not logits: 20 bf16 values per token and channel.
  EXPECT_LT(workspace_bytes(config, twice, Precision::bf16, last, {}) -
                workspace_bytes(config, shape, Precision::bf16, last, {}),
            size_t{64} * 1024 * 768 * 40 + chunk_logits);
}

TEST(Layout, TensorsOfASlotAreAlignedAndDoNotOverlap) {
  GptConfig config;
  config.layers = 4;
  config.hidden = 24;
  config.heads = 3;
  config.vocabulary = 7;
  config.sequence = 5;
  const auto rows = activation_layout(config, {1, 5}, Precision::fp32, {0, 3, true, true}, {});
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
