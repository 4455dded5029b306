#include "pipetrain/train/huggingface.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/train/temporary.h"

namespace pipetrain {
namespace {

using nlohmann::json;

const std::string fixture = PIPETRAIN_TEST_DATA "/gpt2_l8_c32";

// A directory with a GPT-2 of 11 layers, so that h.1 and h.10 exist, whose tensor number i holds
// i + k / 1000 at element k.
class HuggingFace : public testing::Test {
 protected:
  HuggingFace() {
    config_ = json::parse(read_file(fixture + "/config.json"));
    config_["n_layer"] = 11;
    config_["n_embd"] = 8;
    config_["n_head"] = 1;
    config_["vocab_size"] = 10;
    config_["n_positions"] = 4;
    write_config();
    model_ = read_huggingface_config(directory_.path()).config;
    for (const Parameter& parameter : parameter_table(model_)) {
      add(parameter.name, parameter.shape);
    }
  }

  void write_config() { write_file(directory_.file("config.json"), config_.dump()); }
  void add(const std::string& name, const std::vector<size_t>& shape) {
    tensors_.push_back({name, "F64", shape});
  }
  // Values of the tensor at a place in tensors_.
  std::vector<double> values(size_t place) const {
    std::vector<double> result(TensorInfo{"", "", tensors_[place].shape, 0, 0}.elements());
    for (size_t k = 0; k < result.size(); ++k) {
      result[k] = double(place) + double(k) / 1000;
    }
    return result;
  }
  HuggingFaceWeights open() const {
    SafetensorsWriter writer(directory_.file("model.safetensors"), tensors_);
    for (size_t place = 0; place < tensors_.size(); ++place) {
      const std::vector<double> data = values(place);
      writer.write(std::as_bytes(std::span(data)));
    }
    writer.finish();
    return HuggingFaceWeights(directory_.path(), model_);
  }
  std::string weights_error() const {
    return usage_error([&] { open(); });
  }
  std::string config_error(const std::string& field, const json& value) {
    const json old = config_;
    config_[field] = value;
    write_config();
    config_ = old;
    return usage_error([&] { read_huggingface_config(directory_.path()); });
  }

  TemporaryDirectory directory_;
  json config_;
  GptConfig model_;
  std::vector<SafetensorsWriter::Tensor> tensors_;
};

// ---- config.json

TEST_F(HuggingFace, ConfigSaysTheArchitecture) {
  const HuggingFaceConfig read = read_huggingface_config(fixture);
  EXPECT_EQ(read.config.layers, 8);
  EXPECT_EQ(read.config.hidden, 32);
  EXPECT_EQ(read.config.heads, 4);
  EXPECT_EQ(read.config.vocabulary, 257);
  EXPECT_EQ(read.config.sequence, 32);
  EXPECT_EQ(read.config.layernorm_epsilon, 1e-5);
  EXPECT_TRUE(read.config.tied_head);
  EXPECT_TRUE(read.notes.empty());
}

TEST_F(HuggingFace, DropoutIsNotAppliedAndSaidInOneLine) {
  config_["resid_pdrop"] = 0.1;
  config_["attn_pdrop"] = 0.25;
  write_config();
  const HuggingFaceConfig read = read_huggingface_config(directory_.path());
  ASSERT_EQ(read.notes.size(), 1u);
  EXPECT_PRED2(contains, read.notes[0],
               "dropout is not applied (resid_pdrop 0.1, attn_pdrop 0.25)");
  const json exported = json::parse(exported_config(read.config, &read));
  EXPECT_EQ(exported, config_);
}

TEST_F(HuggingFace, OtherComputationsAreRefusedByField) {
  EXPECT_PRED2(contains, config_error("activation_function", "relu"),
               "config.json: activation_function is \"relu\"; supported is gelu_new");
  EXPECT_PRED2(contains, config_error("n_inner", 31), "n_inner is 31; supported is 4 n_embd = 32");
  EXPECT_PRED2(contains, config_error("scale_attn_by_inverse_layer_idx", true),
               "scale_attn_by_inverse_layer_idx is true");
  EXPECT_PRED2(contains, config_error("scale_attn_weights", false), "scale_attn_weights is false");
  EXPECT_PRED2(contains, config_error("reorder_and_upcast_attn", true),
               "reorder_and_upcast_attn is true");
  EXPECT_PRED2(contains, config_error("add_cross_attention", true), "add_cross_attention is true");
  EXPECT_PRED2(contains, config_error("model_type", "llama"), "model_type is \"llama\"");
}

TEST_F(HuggingFace, WrongFieldsAreRefused) {
  EXPECT_PRED2(contains, config_error("n_layer", nullptr), "n_layer is missing");
  EXPECT_PRED2(contains, config_error("n_layer", 0), "n_layer is 0");
  EXPECT_PRED2(contains, config_error("n_layer", "8"), "n_layer is \"8\"");
  EXPECT_PRED2(contains, config_error("n_embd", 8.5), "n_embd is 8.5");
  EXPECT_PRED2(contains, config_error("vocab_size", uint64_t(1) << 40),
               "vocab_size is 1099511627776; a whole number from 1 to 2147483647");
  EXPECT_PRED2(contains, config_error("n_layer", 8.0), "n_layer is 8.0; a whole number from 1");
  EXPECT_PRED2(contains, config_error("n_embd", 12), "not supported: --hidden 12");
  EXPECT_PRED2(contains, config_error("tie_word_embeddings", "yes"), "tie_word_embeddings is");
  EXPECT_PRED2(contains, config_error("layer_norm_epsilon", -1), "layer_norm_epsilon is -1");
  EXPECT_PRED2(contains, config_error("attn_pdrop", "0.1"), "attn_pdrop is");
  EXPECT_PRED2(contains, usage_error([&] { read_huggingface_config(directory_.file("none")); }),
               "none/config.json: cannot be opened");
  write_file(directory_.file("config.json"), "{");
  EXPECT_PRED2(contains, usage_error([&] { read_huggingface_config(directory_.path()); }),
               "is not valid JSON");
  write_file(directory_.file("config.json"), "[]");
  EXPECT_PRED2(contains, usage_error([&] { read_huggingface_config(directory_.path()); }),
               "is not a JSON object");
}

TEST_F(HuggingFace, ExportedConfigOfANewModelReadsBack) {
  GptConfig config = model_;
  config.tied_head = false;
  config.layernorm_epsilon = 1e-6;
  write_file(directory_.file("config.json"), exported_config(config, nullptr));
  const GptConfig read = read_huggingface_config(directory_.path()).config;
  EXPECT_EQ(read.layers, config.layers);
  EXPECT_EQ(read.hidden, config.hidden);
  EXPECT_EQ(read.heads, config.heads);
  EXPECT_EQ(read.vocabulary, config.vocabulary);
  EXPECT_EQ(read.sequence, config.sequence);
  EXPECT_EQ(read.layernorm_epsilon, config.layernorm_epsilon);
  EXPECT_FALSE(read.tied_head);
}

// ---- model.safetensors

// Fault 41: names matched by prefix, so that layer 1 takes the values of layer 10.
TEST_F(HuggingFace, EveryParameterGetsTheTensorOfItsExactName) {
  std::reverse(tensors_.begin(), tensors_.end());
  const HuggingFaceWeights weights = open();
  for (const Parameter& parameter : parameter_table(model_)) {
    const auto place = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const auto& t) { return t.name == parameter.name; });
    EXPECT_EQ(weights.values(parameter), values(size_t(place - tensors_.begin())))
        << parameter.name;
  }
}

TEST_F(HuggingFace, PrefixIsOptional) {
  for (auto& tensor : tensors_) {
    tensor.name = "transformer." + tensor.name;
  }
  EXPECT_EQ(open().values(parameter_table(model_)[3]), values(3));
}

TEST_F(HuggingFace, MasksAreSkippedAndOnlyThose) {
  add("h.10.attn.bias", {1, 1, 4, 4});
  add("h.0.attn.masked_bias", {});
  open();
  add("h.11.attn.bias", {4, 4});
  EXPECT_PRED2(contains, weights_error(), "'h.11.attn.bias' has no place in a GPT-2 of 11 layers");
}

TEST_F(HuggingFace, MissingExtraAndMisshapenTensorsAreRefused) {
  const auto whole = tensors_;
  tensors_.pop_back();
  EXPECT_PRED2(contains, weights_error(), "tensor 'ln_f.bias' is missing");
  tensors_ = whole;
  tensors_[0].shape = {10, 9};
  EXPECT_PRED2(contains, weights_error(),
               "'wte.weight' has shape (10, 9); config.json asks for (10, 8)");
  tensors_ = whole;
  add("h.1.attn.c_attn.lora", {2});
  EXPECT_PRED2(contains, weights_error(), "'h.1.attn.c_attn.lora' has no place");
  tensors_ = whole;
  add("transformer.wte.weight", {10, 8});
  EXPECT_PRED2(contains, weights_error(), "with and without 'transformer.'");
  std::filesystem::remove(directory_.file("model.safetensors"));
  EXPECT_PRED2(contains, usage_error([&] { HuggingFaceWeights(directory_.path(), model_); }),
               "model.safetensors: cannot be opened");
}

TEST_F(HuggingFace, CopyOfATiedHeadMustBeACopy) {
  add("lm_head.weight", {10, 8});
  EXPECT_PRED2(contains, weights_error(), "lm_head.weight differs from wte.weight");
  model_.tied_head = false;
  EXPECT_EQ(open().values(parameter_table(model_).back()), values(tensors_.size() - 1));
  tensors_.pop_back();
  EXPECT_PRED2(contains, weights_error(), "'lm_head.weight' is missing");
}

TEST_F(HuggingFace, FixtureHasAllTensors) {
  const HuggingFaceConfig read = read_huggingface_config(fixture);
  const HuggingFaceWeights weights(fixture, read.config);
  for (const Parameter& parameter : parameter_table(read.config)) {
    EXPECT_EQ(weights.values(parameter).size(), parameter.elements());
  }
}

}  // namespace
}  // namespace pipetrain
