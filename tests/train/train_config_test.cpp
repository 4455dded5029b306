#include "pipetrain/train/train_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/train/temporary.h"

namespace pipetrain {
namespace {

const std::string fixture = PIPETRAIN_TEST_DATA "/gpt2_l8_c32";

TrainConfig small() {
  TrainConfig config;
  config.layers = 2;
  config.hidden = 16;
  config.heads = 2;
  config.sequence_length = 8;
  config.data = {"text"};
  return config;
}

TEST(TrainConfig, DefaultsAndAModelAndDataAreEnough) {
  small().check();
  TrainConfig named;
  named.model = "gpt2-124m";
  named.data = {"text"};
  named.check();
}

TEST(TrainConfig, ValuesOutOfRangeAreRefusedByTheirFlag) {
  using Change = std::function<void(TrainConfig&)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"--layers 0", [](auto& c) { c.layers = 0; }},
      {"--hidden -8", [](auto& c) { c.hidden = -8; }},
      {"--heads 0", [](auto& c) { c.heads = 0; }},
      {"--vocab-size 0", [](auto& c) { c.vocab_size = 0; }},
      {"--sequence-length 0", [](auto& c) { c.sequence_length = 0; }},
      {"--chunks 0", [](auto& c) { c.chunks = 0; }},
      {"--group -1", [](auto& c) { c.group = -1; }},
      {"--microbatches 0", [](auto& c) { c.microbatches = 0; }},
      {"--microbatch-size 0", [](auto& c) { c.microbatch_size = 0; }},
      {"--memory-limit 0", [](auto& c) { c.memory_limit = 0; }},
      {"--memory-limit nan", [](auto& c) { c.memory_limit = NAN; }},
      {"--steps 0", [](auto& c) { c.steps = 0; }},
      {"--learning-rate nan", [](auto& c) { c.learning_rate = NAN; }},
      {"--learning-rate inf", [](auto& c) { c.learning_rate = INFINITY; }},
      {"--learning-rate -1", [](auto& c) { c.learning_rate = -1; }},
      {"--min-learning-rate nan", [](auto& c) { c.min_learning_rate = NAN; }},
      {"--min-learning-rate 0.1: must be at most", [](auto& c) { c.min_learning_rate = 0.1; }},
      {"--warmup-steps -1", [](auto& c) { c.warmup_steps = -1; }},
      {"--beta1 1", [](auto& c) { c.beta1 = 1; }},
      {"--beta2 -0.1", [](auto& c) { c.beta2 = -0.1; }},
      {"--beta2 nan", [](auto& c) { c.beta2 = NAN; }},
      {"--epsilon 0", [](auto& c) { c.epsilon = 0; }},
      {"--epsilon 1e-60", [](auto& c) { c.epsilon = 1e-60; }},  // 0 in float
      {"--learning-rate 1e+39", [](auto& c) { c.learning_rate = 1e39; }},
      {"--weight-decay -0.1", [](auto& c) { c.weight_decay = -0.1; }},
      {"--grad-clip nan", [](auto& c) { c.grad_clip = NAN; }},
      {"--data is missing", [](auto& c) { c.data.clear(); }},
      {"--timeout 0", [](auto& c) { c.timeout = 0; }},
  };
  for (const auto& [message, change] : cases) {
    TrainConfig config = small();
    change(config);
    EXPECT_PRED2(contains, usage_error([&] { config.check(); }), message);
  }
}

TEST(TrainConfig, ZeroTurnsOffWhatCanBeTurnedOff) {
  TrainConfig config = small();
  config.grad_clip = 0;
  config.weight_decay = 0;
  config.learning_rate = 0;
  config.beta1 = 0;
  config.check();
}

TEST(TrainConfig, ModelIsGivenInOneWay) {
  TrainConfig config = small();
  config.heads.reset();
  EXPECT_PRED2(contains, usage_error([&] { config.check(); }), "--heads is missing");
  config = small();
  config.model = "gpt2-124m";
  EXPECT_PRED2(contains, usage_error([&] { config.check(); }),
               "--layers 2: --model gpt2-124m decides it");
  config.layers.reset();
  config.hidden.reset();
  config.heads.reset();
  config.vocab_size = 256;
  config.check();
  config.init = fixture;
  EXPECT_PRED2(contains, usage_error([&] { config.check(); }), "give one of them");
  config.model.clear();
  EXPECT_PRED2(contains, usage_error([&] { config.check(); }), "--vocab-size 256: --init");
}

TEST(TrainConfig, ExportDoesNotReplaceTheModelItBeganWith) {
  const TemporaryDirectory directory;
  TrainConfig config;
  config.data = {"text"};
  config.init = directory.path();
  config.export_dir = directory.file("new");
  config.check();
  config.export_dir = directory.path() + "/.";
  EXPECT_PRED2(contains, usage_error([&] { config.check(); }), "--export");
}

TEST(ChooseModel, VocabularyFollowsTheDataUnlessGiven) {
  TrainConfig config = small();
  EXPECT_EQ(choose_model(config, 256).config.vocabulary, 256);
  config.vocab_size = 300;
  EXPECT_EQ(choose_model(config, 256).config.vocabulary, 300);
  TrainConfig named;
  named.model = "gpt2-350m";
  EXPECT_EQ(choose_model(named, 256).config.vocabulary, 50257);
  named.vocab_size = 256;
  EXPECT_EQ(choose_model(named, 50257).config.vocabulary, 256);
}

TEST(ChooseModel, InitBringsItsArchitecture) {
  TrainConfig config;
  config.init = fixture;
  const ModelChoice choice = choose_model(config, 256);
  EXPECT_EQ(choice.config.layers, 8);
  EXPECT_EQ(choice.config.vocabulary, 257);
  EXPECT_EQ(choice.sequence, 32);
  EXPECT_TRUE(choice.source.has_value());
}

TEST(ChooseModel, SequenceMayBeShorterThanTheModelsPositionsButNotLonger) {
  TrainConfig config;
  config.init = fixture;
  config.sequence_length = 16;
  EXPECT_EQ(choose_model(config, 256).sequence, 16);
  EXPECT_EQ(choose_model(config, 256).config.sequence, 32);
  config.sequence_length = 33;
  EXPECT_PRED2(contains, usage_error([&] { choose_model(config, 256); }),
               "--sequence-length 33: must be at most 32");
}

TEST(ChooseModel, SizesThatKernelsExcludeAreRefused) {
  TrainConfig config = small();
  config.hidden = 12;
  EXPECT_PRED2(contains, usage_error([&] { choose_model(config, 256); }), "--hidden 12");
  config = small();
  config.microbatch_size = 1 << 30;
  EXPECT_PRED2(contains, usage_error([&] { choose_model(config, 256); }), "--microbatch-size");
}

}  // namespace
}  // namespace pipetrain
