#pragma once

#include <string>

namespace pipetrain {

// What the backward computes again instead of keeping it from the forward on.
enum class Recompute {
  none,
  attention,  // qkv, the attention's output and its log-sum-exp, from the block input
  full        // everything but the block input of each layer
};

// Whose weight gradients a split backward leaves to W; I computes the others.
enum class Defer {
  all,   // of all four matmuls of a layer
  cheap  // of qkv and fc: the gradients of their outputs take the place of the outputs
};

// What slots hold: memory against time. No choice changes a bit of the result.
struct SlotPolicy {
  Recompute recompute = Recompute::none;
  Defer defer = Defer::all;

  friend bool operator==(const SlotPolicy&, const SlotPolicy&) = default;
};

// Throw UsageError naming --recompute or --defer.
Recompute parse_recompute(const std::string& text);
Defer parse_defer(const std::string& text);
std::string to_string(Recompute recompute);
std::string to_string(Defer defer);

}  // namespace pipetrain
