#include "pipetrain/model/config.h"

#include <gtest/gtest.h>

#include <functional>

#include "pipetrain/error.h"
#include "pipetrain/model/flops.h"
#include "pipetrain/model/stage.h"

namespace pipetrain {
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

std::string usage_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

bool names(const std::string& message, const std::string& flag) {
  return message.find(flag + " ") != std::string::npos;
}

TEST(Config, EveryBadSizeNamesItsFlag) {
  const struct {
    const char* flag;
    int GptConfig::*member;
    int value;
  } cases[] = {
      {"--layers", &GptConfig::layers, 0},         {"--hidden", &GptConfig::hidden, 0},
      {"--hidden", &GptConfig::hidden, 20},        {"--heads", &GptConfig::heads, 3},
      {"--heads", &GptConfig::heads, 4},           {"--heads", &GptConfig::heads, -1},
      {"--vocab-size", &GptConfig::vocabulary, 0}, {"--sequence-length", &GptConfig::sequence, 0},
  };
  EXPECT_NO_THROW(tiny().check());
  for (const auto& [flag, member, value] : cases) {
    GptConfig config = tiny();
    config.*member = value;
    const std::string message = usage_error([&] { config.check(); });
    EXPECT_TRUE(names(message, flag)) << flag << " " << value << ": " << message;
    EXPECT_NE(message.find(std::to_string(value)), std::string::npos) << message;
  }
}

TEST(Config, ABadMicrobatchNamesItsFlag) {
  EXPECT_NO_THROW((MicrobatchShape{3, 5}.check(tiny())));
  const auto message = [](int batch, int sequence) {
    return usage_error([&] { MicrobatchShape{batch, sequence}.check(tiny()); });
  };
  EXPECT_TRUE(names(message(0, 5), "--microbatch-size")) << message(0, 5);
  EXPECT_TRUE(names(message(1, 0), "--sequence-length")) << message(1, 0);
  EXPECT_TRUE(names(message(1, 6), "--sequence-length")) << message(1, 6);
  EXPECT_TRUE(names(message(1 << 30, 5), "--microbatch-size")) << message(1 << 30, 5);
}

TEST(Config, PrecisionsReadBackWhatTheyPrint) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    EXPECT_EQ(parse_precision(to_string(precision)), precision);
  }
  EXPECT_TRUE(names(usage_error([] { parse_precision("fp16"); }), "--precision"));
}

TEST(Config, NamedModelsHaveThePublishedParameterCounts) {
  EXPECT_EQ(parameter_count(named_model("gpt2-124m")), 124'439'808U);
  EXPECT_EQ(parameter_count(named_model("gpt2-350m")), 354'823'168U);
  EXPECT_EQ(parameter_count(named_model("gpt2-774m")), 774'030'080U);
  EXPECT_EQ(parameter_count(named_model("gpt2-1558m")), 1'557'611'200U);
  for (const char* name : {"gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m"}) {
    EXPECT_NO_THROW(named_model(name).check());
  }
  EXPECT_TRUE(names(usage_error([] { named_model("gpt2"); }), "--model"));
}

// Fault 44 (counted per chunk, or MFU of -100%): of the model, whatever the spread.
TEST(Config, FlopsPerTokenAreSixTimesTheParametersAndCausalAttention) {
  const GptConfig config = named_model("gpt2-124m");
  EXPECT_DOUBLE_EQ(flops_per_token(config, 1024), 6.0 * 124'439'808 + 6.0 * 12 * 768 * 1024);
  EXPECT_LT(flops_per_token(config, 512), flops_per_token(config, 1024));
}

// Fault 44: a utilisation of one device's peak, or of the sparse one. gpt2-124m at 1024 tokens
// takes 803.26 MFLOP per token (746.64 for the parameters, 56.62 for attention): 1.2 million tokens
// per second on 4 H100 (989 TFLOP/s dense) are 24.37%.
TEST(Config, UtilisationIsThatOfAllDevices) {
  EXPECT_NEAR(model_flops_utilisation(named_model("gpt2-124m"), 1024, 1.2e6, 4, 989e12), 0.24366,
              1e-5);
}

// Fault 28: layers that do not divide evenly are dropped without a word.
TEST(Partition, EveryLayerIsOnExactlyOneStage) {
  for (int layers = 1; layers <= 33; ++layers) {
    for (int stages = 1; stages <= 9; ++stages) {
      const std::vector<StageLayers> parts = partition(layers, stages);
      ASSERT_EQ(parts.size(), static_cast<size_t>(stages));
      int next = 0;
      for (size_t stage = 0; stage < parts.size(); ++stage) {
        EXPECT_EQ(parts[stage].first_layer, next);
        EXPECT_EQ(parts[stage].embedding, stage == 0);
        EXPECT_EQ(parts[stage].head, stage + 1 == parts.size());
        EXPECT_LE(parts[stage].layers, parts[0].layers);
        EXPECT_GE(parts[stage].layers, parts[0].layers - 1);
        next += parts[stage].layers;
      }
      EXPECT_EQ(next, layers) << stages << " stages";
    }
  }
}

TEST(Partition, GivenCountsAreTakenOrRefused) {
  const std::vector<StageLayers> parts = partition(8, 4, {3, 0, 4, 1});
  EXPECT_EQ(parts[1].layers, 0);
  EXPECT_EQ(parts[2].first_layer, 3);
  EXPECT_EQ(parts[3].first_layer, 7);
  for (const std::vector<int>& wrong :
       {std::vector<int>{4, 4}, {3, 0, 4, 2}, {9, -1, 0, 0}, {2, 2, 2, 1}}) {
    const std::string message = usage_error([&] { partition(8, 4, wrong); });
    EXPECT_TRUE(names(message, "--layers-per-stage")) << message;
  }
}

}  // namespace
}  // namespace pipetrain
