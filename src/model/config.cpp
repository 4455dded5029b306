#include "pipetrain/model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <numeric>

#include "pipetrain/error.h"

namespace pipetrain {

namespace {

struct NamedPrecision {
  const char* name;
  Precision precision;
  size_t element;
  size_t accumulator;
};

constexpr NamedPrecision precisions[] = {
    {"fp32", Precision::fp32, 4, 4},
    {"bf16", Precision::bf16, 2, 4},
    {"fp64", Precision::fp64, 8, 8},
};

const NamedPrecision& row_of(Precision precision) {
  for (const NamedPrecision& row : precisions) {
    if (row.precision == precision) {
      return row;
    }
  }
  throw InternalError(fmt::format("precision {} is unknown", static_cast<int>(precision)));
}

struct NamedSize {
  const char* name;
  int layers;
  int hidden;
  int heads;
};

// GPT-2's published sizes (Radford et al. 2019).
constexpr NamedSize sizes[] = {
    {"gpt2-124m", 12, 768, 12},
    {"gpt2-350m", 24, 1024, 16},
    {"gpt2-774m", 36, 1280, 20},
    {"gpt2-1558m", 48, 1600, 25},
};

// With these no number of elements or bytes overflows.
constexpr int most_layers = 1 << 16;
constexpr int most_channels = 1 << 17;
constexpr int most_tokens = 1 << 24;
constexpr int64_t most_weights = int64_t{1} << 38;  // twelfths of those of the blocks

void require_count(int value, int most, const char* flag) {
  if (value < 1 || value > most) {
    throw UsageError(fmt::format("{} {}: must be at least 1 and at most {}", flag, value, most));
  }
}

}  // namespace

Precision parse_precision(const std::string& text) {
  for (const NamedPrecision& row : precisions) {
#ifdef PIPETRAIN_CUDA
    if (row.precision == Precision::fp64) {
      continue;
    }
#endif
    if (text == row.name) {
      return row.precision;
    }
  }
  throw UsageError(fmt::format(
      "--precision {}: must be fp32 or bf16 (fp64 exists in host builds only, for tests)", text));
}

std::string to_string(Precision precision) {
  return row_of(precision).name;
}
size_t element_bytes(Precision precision) {
  return row_of(precision).element;
}
size_t accumulator_bytes(Precision precision) {
  return row_of(precision).accumulator;
}

void GptConfig::check() const {
  require_count(layers, most_layers, "--layers");
  require_count(hidden, most_channels, "--hidden");
  require_count(heads, most_channels, "--heads");
  require_count(vocabulary, most_tokens, "--vocab-size");
  require_count(sequence, most_tokens, "--sequence-length");
  if (int64_t{layers} * hidden * hidden > most_weights) {
    throw UsageError(fmt::format("--hidden {}: with --layers {} these are {:.1f} trillion weights",
                                 hidden, layers, 12e-12 * layers * hidden * hidden));
  }
  if (hidden % 8 != 0) {
    throw UsageError(fmt::format("--hidden {}: must be a multiple of 8", hidden));
  }
  if (hidden % heads != 0) {
    throw UsageError(fmt::format("--heads {}: must divide --hidden {}", heads, hidden));
  }
  if (head_size() % 8 != 0) {
    throw UsageError(
        fmt::format("--heads {}: the head size --hidden / --heads = {} must be a multiple of 8",
                    heads, head_size()));
  }
}

GptConfig named_model(const std::string& name) {
  for (const NamedSize& size : sizes) {
    if (name == size.name) {
      GptConfig config;
      config.layers = size.layers;
      config.hidden = size.hidden;
      config.heads = size.heads;
      config.vocabulary = 50257;
      config.sequence = 1024;
      return config;
    }
  }
  throw UsageError(
      fmt::format("--model {}: must be gpt2-124m, gpt2-350m, gpt2-774m or gpt2-1558m", name));
}

std::vector<StageLayers> partition(int layers, int stages, const std::vector<int>& per_stage) {
  std::vector<int> counts(static_cast<size_t>(stages), layers / stages);
  for (int stage = 0; stage < layers % stages; ++stage) {
    ++counts[static_cast<size_t>(stage)];
  }
  if (!per_stage.empty()) {
    counts = per_stage;
    if (counts.size() != static_cast<size_t>(stages)) {
      throw UsageError(fmt::format("--layers-per-stage {}: {} entries, but there are {} stages",
                                   fmt::join(counts, ","), counts.size(), stages));
    }
    for (const int count : counts) {
      if (count < 0) {
        throw UsageError(fmt::format("--layers-per-stage {}: every entry must be at least 0",
                                     fmt::join(counts, ",")));
      }
    }
    const auto sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (sum != layers) {
      throw UsageError(fmt::format("--layers-per-stage {}: sums to {}, but --layers is {}",
                                   fmt::join(counts, ","), sum, layers));
    }
  }

  std::vector<StageLayers> result;
  int first = 0;
  for (const int count : counts) {
    result.push_back({first, count, result.empty(), false});
    first += count;
  }
  result.back().head = true;
  return result;
}

}  // namespace pipetrain
