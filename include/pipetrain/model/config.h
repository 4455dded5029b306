#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pipetrain {

// bf16: weights in use (but layer norms'), activations and messages in bf16; masters, gradients and
// statistics in fp32. fp64 exists in host builds, for tests.
enum class Precision { fp32, bf16, fp64 };

Precision parse_precision(const std::string& text);  // throws UsageError naming --precision
std::string to_string(Precision precision);
size_t element_bytes(Precision precision);      // weights, activations, messages
size_t accumulator_bytes(Precision precision);  // gradients, masters, moments, losses

// A GPT-2.
struct GptConfig {
  int layers = 0;  // L
  int hidden = 0;  // C
  int heads = 0;
  int vocabulary = 0;  // V
  int sequence = 0;    // T
  double layernorm_epsilon = 1e-5;
  bool tied_head = true;  // the head uses the embedding's matrix

  int head_size() const { return hidden / heads; }
  // V rounded up to a multiple of 128: rows of the embedding and width of the logits inside.
  int padded_vocabulary() const { return (vocabulary + 127) / 128 * 128; }
  // Throws UsageError naming the flag unless all are positive and not absurd, heads divide hidden,
  // and hidden and the head size are multiples of 8.
  void check() const;
};

// gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m. Throws UsageError naming --model.
GptConfig named_model(const std::string& name);

// The layers of one stage, and whether it embeds tokens or ends in the head.
struct StageLayers {
  int first_layer = 0;
  int layers = 0;
  bool embedding = false;
  bool head = false;
};

// L layers over `stages` stages, as even as possible, earlier stages first; some stages are empty
// when there are more stages than layers. `per_stage` (--layers-per-stage) overrides: throws
// UsageError unless it has one entry >= 0 per stage and sums to L.
std::vector<StageLayers> partition(int layers, int stages, const std::vector<int>& per_stage = {});

}  // namespace pipetrain
