// What is kept and what is computed again changes memory and time, not the result.

#include <gtest/gtest.h>

#include "rig.h"

#ifdef PIPETRAIN_HOST
#include "emulator.h"
#endif

namespace pipetrain::test {
namespace {

constexpr int layers = 3;
constexpr int microbatches = 2;

GptConfig tiny() {
  GptConfig config;
  config.layers = layers;
  config.hidden = 16;
  config.heads = 2;
  config.vocabulary = 131;
  config.sequence = 6;
  return config;
}

std::string text(const SlotPolicy& policy, Backward backward) {
  const char* names[] = {"whole", "split", "split late"};
  return "recompute " + to_string(policy.recompute) + " defer " + to_string(policy.defer) + " " +
         names[static_cast<int>(backward)];
}

struct Result {
  std::vector<double> losses;
  Values gradients;
  int64_t matmuls = 0;
};

Result run(Precision precision, const std::vector<StageLayers>& chunks, Backward backward,
           const SlotPolicy& policy) {
  const MicrobatchShape shape{2, 6};
  Rig rig(tiny(), shape, precision, chunks, Stores::one, policy);
  rig.set_weights(lively_weights(tiny(), 3));
  const auto count = static_cast<size_t>(microbatches * shape.rows());
  Result result;
#ifdef PIPETRAIN_HOST
  emulator::reset_counters(0);
#endif
  rig.run_step(some_tokens(count, tiny().vocabulary, 1), some_tokens(count, tiny().vocabulary, 2),
               backward);
#ifdef PIPETRAIN_HOST
  result.matmuls = emulator::counters(0).matmuls;
#endif
  result.losses = rig.losses();
  result.gradients = rig.gradients();
  return result;
}

// The rig fills the workspace with NaN between F, B, I and W: what one leaves there for another
// would show.
TEST(Recompute, ChangesNoBit) {
  for (const Precision precision : {Precision::fp32, Precision::bf16
#ifdef PIPETRAIN_HOST
                                    ,
                                    Precision::fp64
#endif
       }) {
    const Result kept = run(precision, partition(layers, 1), Backward::whole, {});
    for (const SlotPolicy& policy : all_policies()) {
      for (const Backward backward : {Backward::whole, Backward::split, Backward::split_late}) {
        for (const int chunks : {1, 2, 5}) {
          SCOPED_TRACE(text(policy, backward));
          const Result result = run(precision, partition(layers, chunks), backward, policy);
          EXPECT_EQ(result.losses, kept.losses);
          EXPECT_EQ(result.gradients, kept.gradients);
        }
      }
    }
  }
}

#ifdef PIPETRAIN_HOST

// Fault 33: a split backward recomputes twice. A layer's forward is the matmuls of qkv, scores,
// output and projection of each sequence's attention, fc and projection.
TEST(Recompute, OfALayerHappensOncePerMicrobatch) {
  constexpr int64_t sequences = 2;
  const auto expected = [](Recompute recompute) -> int64_t {
    switch (recompute) {
      case Recompute::none:
        return 0;
      case Recompute::attention:
        return 1 + 2 * sequences;
      case Recompute::full:
        return 1 + 2 * sequences + 1 + 1;
    }
    return -1;
  };
  const int64_t kept = run(Precision::fp32, partition(layers, 2), Backward::whole, {}).matmuls;
  for (const SlotPolicy& policy : all_policies()) {
    for (const Backward backward : {Backward::whole, Backward::split, Backward::split_late}) {
      SCOPED_TRACE(text(policy, backward));
      EXPECT_EQ(run(Precision::fp32, partition(layers, 2), backward, policy).matmuls,
                kept + microbatches * layers * expected(policy.recompute));
    }
  }
}

#endif

}  // namespace
}  // namespace pipetrain::test
