// Gradients against finite differences in float64, for small and odd shapes, and what a stage may
// touch.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "rig.h"

#ifdef PIPETRAIN_HOST
#include "emulator.h"
#endif

namespace pipetrain::test {
namespace {

GptConfig tiny() {
  GptConfig config;
  config.layers = 2;
  config.hidden = 16;
  config.heads = 2;
  config.vocabulary = 257;
  config.sequence = 5;
  return config;
}

struct Batch {
  std::vector<int> inputs;
  std::vector<int> targets;
};

Batch some_batch(const GptConfig& config, const MicrobatchShape& shape, size_t microbatches) {
  const size_t count = microbatches * static_cast<size_t>(shape.rows());
  Batch batch{some_tokens(count, config.vocabulary, 1), some_tokens(count, config.vocabulary, 2)};
  batch.inputs[0] = config.vocabulary - 1;
  batch.targets[0] = config.vocabulary - 1;
  return batch;
}

#ifdef PIPETRAIN_HOST

// Compares, for every parameter tensor, its gradient along a random direction with the central
// difference of the loss.
void expect_gradients_of_the_loss(const GptConfig& config, const MicrobatchShape& shape,
                                  const std::vector<StageLayers>& chunks, const Batch& batch) {
  Rig rig(config, shape, Precision::fp64, chunks);
  const Values weights = lively_weights(config, 3);
  rig.set_weights(weights);
  rig.run_step(batch.inputs, batch.targets, Backward::whole);
  EXPECT_EQ(rig.padding(), 0);
  const Values gradients = rig.gradients();
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (const auto& [name, values] : weights) {
    if (gradients.count(name) == 0) {
      continue;  // of a layer that no chunk holds
    }
    std::vector<double> direction(values.size());
    double slope = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      direction[i] = normal(random);
      slope += direction[i] * gradients.at(name)[i];
    }
    constexpr double step = 1e-5;
    double losses[2] = {};
    for (const int side : {0, 1}) {
      Values moved = weights;
      for (size_t i = 0; i < values.size(); ++i) {
        moved[name][i] += (side == 0 ? -step : step) * direction[i];
      }
      rig.set_weights(moved);
      rig.evaluate(batch.inputs, batch.targets);
      losses[side] = rig.loss();
    }
    const double difference = (losses[1] - losses[0]) / (2 * step);
    EXPECT_NEAR(slope, difference, 1e-6 * std::max(1.0, std::abs(slope))) << name;
  }
}

TEST(Gradients, AreTheSlopesOfTheLoss) {
  expect_gradients_of_the_loss(tiny(), {2, 5}, partition(2, 1), some_batch(tiny(), {2, 5}, 2));
}

TEST(Gradients, AreTheSlopesOfTheLossWithAnUntiedHead) {
  GptConfig config = tiny();
  config.tied_head = false;
  expect_gradients_of_the_loss(config, {2, 5}, partition(2, 2), some_batch(config, {2, 5}, 1));
}

TEST(Gradients, AreTheSlopesOfTheLossForOneTokenPerSequence) {
  expect_gradients_of_the_loss(tiny(), {3, 1}, partition(2, 2), some_batch(tiny(), {3, 1}, 1));
}

TEST(Gradients, AreTheSlopesOfTheLossWithoutLayers) {
  GptConfig config = tiny();
  config.layers = 0;
  for (const int chunks : {1, 3}) {
    expect_gradients_of_the_loss(config, {3, 4}, partition(0, chunks),
                                 some_batch(config, {3, 4}, 1));
  }
}

// Fault 18: targets of -1 count in the mean, or change a gradient.
TEST(Gradients, AreTheSlopesOfTheMeanOverValidTargets) {
  Batch batch = some_batch(tiny(), {2, 5}, 3);
  for (const size_t ignored : {0, 3, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 29}) {
    batch.targets[ignored] = -1;  // all of the second micro-batch
  }
  expect_gradients_of_the_loss(tiny(), {2, 5}, partition(2, 1), batch);
}

TEST(Gradients, AreTheSlopesOfTheLossWhenTheHeadTakesSeveralChunksOfRows) {
  GptConfig config = tiny();
  config.layers = 0;
  config.sequence = 550;
  const MicrobatchShape shape{2, 550};
  ASSERT_GT(shape.rows(), 1024);
  expect_gradients_of_the_loss(config, shape, partition(0, 1), some_batch(config, shape, 1));
}

// Sequences of a micro-batch are independent: two of them at once are as one after the other.
TEST(Gradients, AreThoseOfSmallerMicrobatchesWhenTheHeadTakesSeveralChunksOfRows) {
  GptConfig config = tiny();
  config.sequence = 550;
  const Batch batch = some_batch(config, {2, 550}, 1);
  Rig together(config, {2, 550}, Precision::fp64, partition(2, 1));
  Rig apart(config, {1, 550}, Precision::fp64, partition(2, 1));
  for (Rig* rig : {&together, &apart}) {
    rig->set_weights(lively_weights(config, 3));
    rig->run_step(batch.inputs, batch.targets, Backward::whole);
  }
  EXPECT_NEAR(together.loss(), apart.loss(), 1e-12);
  const Values expected = apart.gradients();
  for (const auto& [name, values] : together.gradients()) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], expected.at(name)[i], 1e-12) << name;
    }
  }
}

// A slot has no byte that is not needed, so that the bytes that are planned are those that are
// used.
TEST(Slots, AreFilledByForwardAndInputGradientToTheLastByte) {
  GptConfig config = tiny();
  config.hidden = 64;
  config.heads = 4;
  config.sequence = 8;
  const MicrobatchShape shape{2, 8};
  const std::vector<StageLayers> chunks = partition(2, 4);
  const Batch batch = some_batch(config, shape, 2);
  for (const SlotPolicy& policy : all_policies()) {
    SCOPED_TRACE(to_string(policy.recompute) + " " + to_string(policy.defer));
    Rig rig(config, shape, Precision::bf16, chunks, Stores::one, policy);
    rig.set_weights(lively_weights(config, 3));
    rig.run_step(batch.inputs, batch.targets, Backward::split);
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      for (const size_t microbatch : {0, 1}) {
        for (const GuardedBuffer* slot :
             {&rig.slot(chunk, microbatch), &rig.gradient_slot(chunk, microbatch)}) {
          EXPECT_EQ(emulator::touched_bytes(slot->data(), slot->bytes()), slot->bytes());
        }
      }
    }
  }
}

#endif

// Fault 7: evaluation between steps changes a gradient.
TEST(Evaluation, GivesTheLossOfTrainingAndLeavesGradientsAlone) {
  const MicrobatchShape shape{2, 5};
  for (const int chunks : {1, 2, 3}) {
    Rig rig(tiny(), shape, Precision::bf16, partition(2, chunks));
    rig.set_weights(lively_weights(tiny(), 3));
    const Batch batch = some_batch(tiny(), shape, 3);
    rig.run_step(batch.inputs, batch.targets, Backward::whole);
    const std::vector<double> losses = rig.losses();
    const Values gradients = rig.gradients();
    rig.evaluate(batch.inputs, batch.targets);
    EXPECT_EQ(rig.losses(), losses);
    EXPECT_EQ(rig.gradients(), gradients);
  }
}

// Fault 17: two micro-batches accumulated give twice the gradient of one, whatever came before.
TEST(Accumulation, AddsMicrobatchGradientsOnce) {
  const MicrobatchShape shape{1, 5};
  Rig rig(tiny(), shape, Precision::fp32, partition(2, 2));
  rig.set_weights(lively_weights(tiny(), 3));
  const Batch one = some_batch(tiny(), shape, 1);
  Batch twice = one;
  twice.inputs.insert(twice.inputs.end(), one.inputs.begin(), one.inputs.end());
  twice.targets.insert(twice.targets.end(), one.targets.begin(), one.targets.end());
  rig.run_step(one.inputs, one.targets, Backward::whole);
  const Values expected = rig.gradients();
  rig.run_step(twice.inputs, twice.targets, Backward::whole);  // of the mean: the same again
  for (const auto& [name, values] : rig.gradients()) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], expected.at(name)[i], 1e-6 * (1 + std::abs(values[i]))) << name;
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
