#include "pipetrain/train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "pipetrain/error.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"

namespace pipetrain {
namespace {

size_t quotient_rounded_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace

void OrderedWindows::fill(int64_t pass, int replica, int* inputs, int* targets) const {
  const size_t rows = pass_.rows();
  std::vector<int> tokens(rows + 1);
  for (size_t i = 0; i < size_t(pass_.microbatches); ++i) {
    const size_t window =
        (size_t(pass) * size_t(pass_.microbatches) + i) * size_t(pass_.replicas) + size_t(replica);
    const bool exists = window < windows_;
    if (exists) {
      tokens_.read(window * rows, rows + 1, vocabulary_, tokens.data());
    }
    if (inputs != nullptr) {
      exists ? std::copy_n(tokens.data(), rows, inputs + i * rows)
             : std::fill_n(inputs + i * rows, rows, 0);
    }
    if (targets != nullptr) {
      exists ? std::copy_n(tokens.data() + 1, rows, targets + i * rows)
             : std::fill_n(targets + i * rows, rows, -1);
    }
  }
}

size_t OrderedWindows::valid_targets(int64_t pass) const {
  const size_t first = size_t(pass) * pass_.global_microbatches();
  const size_t left = windows_ - std::min(first, windows_);
  return std::min(left, pass_.global_microbatches()) * pass_.rows();
}

size_t Evaluation::valid_targets() const {
  size_t sum = 0;
  for (int64_t i = 0; i < passes; ++i) {
    sum += batches->valid_targets(i);
  }
  return sum;
}

std::string to_string(const Evaluation& evaluation) {
  const BatchShape& pass = evaluation.pass;
  return fmt::format("{} micro-batches of {} x {} tokens in {} {}", evaluation.microbatches,
                     pass.batch, pass.sequence, evaluation.passes,
                     evaluation.passes == 1 ? "pass" : "passes");
}

void require_window(const TokenStream& tokens, const BatchShape& shape, const std::string& flag) {
  if (tokens.size() < shape.rows() + 1) {
    throw UsageError(
        fmt::format("{}: {} tokens are available and one micro-batch needs {}: --microbatch-size "
                    "{} x --sequence-length {} + 1; give more data or make one smaller",
                    flag, tokens.size(), shape.rows() + 1, shape.batch, shape.sequence));
  }
}

Evaluation make_evaluation(std::unique_ptr<TokenStream> tokens, const BatchShape& shape,
                           std::optional<int64_t> limit, int vocabulary,
                           const schedule::Placement& placement) {
  size_t windows = (tokens->size() - 1) / shape.rows();
  if (limit) {
    windows = std::min(windows, size_t(*limit));
  }
  // Passes of equal size: fewer micro-batches than there are passes are computed for nothing.
  const auto most = size_t(std::max(shape.microbatches, placement.ranks()));
  const size_t microbatches = quotient_rounded_up(windows, size_t(shape.replicas));
  const size_t passes = quotient_rounded_up(microbatches, most);
  BatchShape pass = shape;
  pass.microbatches = int(quotient_rounded_up(microbatches, passes));
  auto batches = std::make_unique<OrderedWindows>(*tokens, pass, windows, vocabulary);
  return {std::move(tokens),  pass,
          int64_t(passes),    windows,
          std::move(batches), lower(schedule::generate_forward_only(placement, pass.microbatches))};
}

}  // namespace pipetrain
