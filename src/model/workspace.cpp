#include "model/workspace.h"

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/bias_gelu.h"
#include "kernels/layernorm.h"
#include "model/dispatch.h"

namespace pipetrain {

namespace {

namespace block_row {
enum {
  normalized,
  activated,
  hidden_gradient,
  mean,
  rstd,
  attention,
  bias_sums,
  layernorm_sums,
  output_gradient,
  middle_gradient,
  fc_gradient,
  qkv,
  attended,
  log_sum_exp,
  middle,
  fc
};
}
namespace head_row {
enum { normalized, normalized_gradient, logits, mean, rstd, layernorm_sums, losses };
}

template <typename T>
std::vector<LayoutRow> block_rows(const GptConfig& config, const MicrobatchShape& shape,
                                  const SlotPolicy& policy, WorkspaceUse use) {
  const int backward = use == WorkspaceUse::everything ? 1 : 0;
  const int attention_again = policy.recompute == Recompute::none ? 0 : 1;
  const int others_again = policy.recompute == Recompute::full ? 1 : 0;
  const size_t heads = static_cast<size_t>(config.heads);
  const size_t hidden =
      static_cast<size_t>(shape.rows()) * static_cast<size_t>(config.hidden) * sizeof(T);
  const size_t statistic = static_cast<size_t>(shape.rows()) * sizeof(kernels::acc_t<T>);
  size_t bias = 0;
  for (const int width : {1, 3, 4}) {
    bias = std::max(bias, kernels::bias_workspace_bytes<T>(shape.rows(), width * config.hidden));
  }
  const kernels::AttentionShape attention{shape.batch, shape.sequence, config.heads,
                                          config.head_size()};
  return {
      {"normalized", hidden, 2},
      {"activated", 4 * hidden, 1},
      {"hidden gradient", hidden, backward},
      {"mean", statistic, 1},
      {"rstd", statistic, 1},
      {"attention", kernels::attention_workspace_bytes<T>(attention), 1},
      {"bias sums", bias, backward},
      {"layer-norm sums", kernels::layernorm_workspace_bytes<T>(shape.rows(), config.hidden),
       backward},
      {"gradient of the block output", hidden, 2 * backward},
      {"gradient of the middle residual", hidden, backward},
      {"gradient of fc", 4 * hidden, policy.defer == Defer::all ? backward : 0},
      {"qkv", 3 * hidden, attention_again},
      {"attention output", hidden, attention_again},
      {"log-sum-exp", heads * statistic, attention_again},
      {"middle residual", hidden, others_again},
      {"fc", 4 * hidden, others_again},
  };
}

template <typename T>
std::vector<LayoutRow> head_rows(const GptConfig& config, const MicrobatchShape& shape) {
  const auto chunk = static_cast<size_t>(head_chunk_rows(shape));
  const size_t hidden = chunk * static_cast<size_t>(config.hidden) * sizeof(T);
  const size_t statistic = chunk * sizeof(kernels::acc_t<T>);
  return {
      {"normalized", hidden, 1},
      {"gradient of normalized", hidden, 1},
      {"logits", chunk * static_cast<size_t>(config.padded_vocabulary()) * sizeof(T), 1},
      {"mean", statistic, 1},
      {"rstd", statistic, 1},
      {"layer-norm sums",
       kernels::layernorm_workspace_bytes<T>(head_chunk_rows(shape), config.hidden), 1},
      {"losses", static_cast<size_t>(shape.rows()) * sizeof(kernels::acc_t<T>), 1},
  };
}

std::vector<LayoutRow> block_layout(const GptConfig& config, const MicrobatchShape& shape,
                                    Precision precision, const SlotPolicy& policy,
                                    WorkspaceUse use) {
  return with_element_type(precision,
                           [&]<typename T>() { return block_rows<T>(config, shape, policy, use); });
}

std::vector<LayoutRow> head_layout(const GptConfig& config, const MicrobatchShape& shape,
                                   Precision precision, bool head) {
  return with_element_type(precision, [&]<typename T>() {
    return head ? head_rows<T>(config, shape) : std::vector<LayoutRow>{};
  });
}

bool any_head(const std::vector<StageLayers>& stages) {
  return std::any_of(stages.begin(), stages.end(), [](const StageLayers& s) { return s.head; });
}

}  // namespace

int head_chunk_rows(const MicrobatchShape& shape) {
  return std::min(shape.rows(), 1024);
}

size_t workspace_bytes(const GptConfig& config, const MicrobatchShape& shape, Precision precision,
                       const std::vector<StageLayers>& stages, const SlotPolicy& policy,
                       WorkspaceUse use) {
  const bool head = any_head(stages);
  const SlotLayout block(block_layout(config, shape, precision, policy, use));
  const SlotLayout chunk(head_layout(config, shape, precision, head));
  return aligned(kernels::matmul_workspace_bytes()) +
         (head ? aligned(message_bytes(config, shape, precision)) : 0) +
         std::max(block.bytes(), chunk.bytes());
}

GptWorkspace::GptWorkspace(const GptConfig& config, const MicrobatchShape& shape,
                           Precision precision, const std::vector<StageLayers>& stages,
                           const SlotPolicy& policy, WorkspaceUse use, Region& region)
    : policy_(policy),
      matmul_(region.take_bytes(kernels::matmul_workspace_bytes())),
      residual_(any_head(stages) ? region.take_bytes(message_bytes(config, shape, precision))
                                 : nullptr),
      block_(block_layout(config, shape, precision, policy, use)),
      head_(head_layout(config, shape, precision, any_head(stages))),
      scratch_(region.take_bytes(std::max(block_.bytes(), head_.bytes()))) {}

template <typename T>
BlockScratch<T> GptWorkspace::block_scratch() const {
  const auto at = [&]<typename P>(P*& pointer, int row, int index = 0) {
    if (block_.holds(row)) {
      pointer = reinterpret_cast<P*>(scratch_ + block_.offset(row, index));
    }
  };
  BlockScratch<T> result;
  for (const int i : {0, 1}) {
    at(result.normalized[i], block_row::normalized, i);
    at(result.output_gradient[i], block_row::output_gradient, i);
  }
  at(result.activated, block_row::activated);
  at(result.hidden_gradient, block_row::hidden_gradient);
  at(result.mean, block_row::mean);
  at(result.rstd, block_row::rstd);
  at(result.attention, block_row::attention);
  at(result.bias_sums, block_row::bias_sums);
  at(result.layernorm_sums, block_row::layernorm_sums);
  at(result.middle_gradient, block_row::middle_gradient);
  at(result.fc_gradient, block_row::fc_gradient);
  at(result.qkv, block_row::qkv);
  at(result.attended, block_row::attended);
  at(result.log_sum_exp, block_row::log_sum_exp);
  at(result.middle, block_row::middle);
  at(result.fc, block_row::fc);
  return result;
}

template <typename T>
HeadScratch<T> GptWorkspace::head_scratch() const {
  const auto at = [&]<typename P>(P*& pointer, int row) {
    pointer = reinterpret_cast<P*>(scratch_ + head_.offset(row, 0));
  };
  HeadScratch<T> result;
  at(result.normalized, head_row::normalized);
  at(result.normalized_gradient, head_row::normalized_gradient);
  at(result.logits, head_row::logits);
  at(result.mean, head_row::mean);
  at(result.rstd, head_row::rstd);
  at(result.layernorm_sums, head_row::layernorm_sums);
  at(result.losses, head_row::losses);
  return result;
}

template BlockScratch<float> GptWorkspace::block_scratch() const;
template BlockScratch<kernels::bf16> GptWorkspace::block_scratch() const;
template HeadScratch<float> GptWorkspace::head_scratch() const;
template HeadScratch<kernels::bf16> GptWorkspace::head_scratch() const;
#ifdef PIPETRAIN_HOST
template BlockScratch<double> GptWorkspace::block_scratch() const;
template HeadScratch<double> GptWorkspace::head_scratch() const;
#endif

std::unique_ptr<GptWorkspace, void (*)(GptWorkspace*)> make_gpt_workspace(
    const GptConfig& config, const MicrobatchShape& shape, Precision precision,
    const std::vector<StageLayers>& stages, const SlotPolicy& policy, Region& region,
    WorkspaceUse use) {
  shape.check(config);
  return {new GptWorkspace(config, shape, precision, stages, policy, use, region),
          [](GptWorkspace* workspace) { delete workspace; }};
}

}  // namespace pipetrain
