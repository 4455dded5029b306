#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "pipetrain/schedule/schedule.h"
#include "pipetrain/train/tokens.h"

namespace pipetrain {

// The first windows of B*T + 1 tokens of a stream in order, in passes: pass, micro-batch i of it
// and replica j read window (pass*M + i)*D + j. Where a pass goes beyond the last window, targets
// are -1.
class OrderedWindows : public DataSource {
 public:
  // `tokens` must outlive this and hold all windows.
  OrderedWindows(const TokenStream& tokens, const BatchShape& pass, size_t windows, int vocabulary)
      : tokens_(tokens), pass_(pass), windows_(windows), vocabulary_(vocabulary) {}

  void fill(int64_t pass, int replica, int* inputs, int* targets) const override;
  size_t valid_targets(int64_t pass) const override;

 private:
  const TokenStream& tokens_;
  BatchShape pass_;
  size_t windows_;
  int vocabulary_;
};

// What is evaluated, and how: the same on all ranks. All micro-batches go through the pipeline in
// passes of one size; each pass follows the one before it without a gap.
struct Evaluation {
  std::unique_ptr<TokenStream> tokens;
  BatchShape pass;  // what one pass reads; its M is the number of micro-batches in `lowered`
  int64_t passes = 0;
  size_t microbatches = 0;              // over all passes and replicas
  std::unique_ptr<DataSource> batches;  // a step of it is a pass
  schedule::LoweredSchedule lowered;    // forward only

  size_t valid_targets() const;  // of all passes
};

// "32 micro-batches of 4 x 128 tokens in 4 passes".
std::string to_string(const Evaluation& evaluation);

struct EvaluationResult {
  double loss = 0;     // mean over the valid targets, in nats
  size_t targets = 0;  // over which
  double seconds = 0;

  double perplexity() const { return std::exp(loss); }
};

// Throws UsageError that names `flag` when the stream is shorter than one window.
void require_window(const TokenStream& tokens, const BatchShape& shape, const std::string& flag);

// `tokens`: at least one window, checked against the vocabulary. `shape`: its M is the most
// micro-batches of a pass; raised to the ranks of the pipeline, which fill it. `limit`:
// micro-batches over all replicas; a tail of the stream that fills no window is dropped. Any
// placement: its ranks and chunks count.
Evaluation make_evaluation(std::unique_ptr<TokenStream> tokens, const BatchShape& shape,
                           std::optional<int64_t> limit, int vocabulary,
                           const schedule::Placement& placement);

}  // namespace pipetrain
