#include "pipetrain/train/huggingface.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "pipetrain/error.h"
#include "train/mapped_file.h"

namespace pipetrain {
namespace {

using nlohmann::ordered_json;

const std::string prefix = "transformer.";

std::string without_prefix(const std::string& name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

// ---- config.json

// The fields of config.json; messages name the file and the field.
class Fields {
 public:
  Fields(std::string source, const std::string& text) : source_(std::move(source)) {
    try {
      json_ = ordered_json::parse(text);
    } catch (const ordered_json::exception&) {
      refuse("is not valid JSON");
    }
    if (!json_.is_object()) {
      refuse("is not a JSON object");
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError(fmt::format("{}: {}", source_, what));
  }
  [[noreturn]] void refuse(const char* field, const std::string& allowed) const {
    refuse(fmt::format("{} is {}; {}", field, json_[field].dump(), allowed));
  }

  bool has(const char* field) const { return json_.contains(field) && !json_[field].is_null(); }

  int count(const char* field) const {
    if (!has(field)) {
      refuse(fmt::format("{} is missing", field));
    }
    const ordered_json& value = json_[field];
    if (!value.is_number_integer() || value < 1 || value > std::numeric_limits<int>::max()) {
      refuse(field, fmt::format("a whole number from 1 to {}, without a decimal point, is needed",
                                std::numeric_limits<int>::max()));
    }
    return value.get<int>();
  }
  double number(const char* field, double missing) const {
    if (has(field) && !json_[field].is_number()) {
      refuse(field, "a number is needed");
    }
    return has(field) ? json_[field].get<double>() : missing;
  }
  bool flag(const char* field, bool missing) const {
    if (has(field) && !json_[field].is_boolean()) {
      refuse(field, "true or false is needed");
    }
    return has(field) ? json_[field].get<bool>() : missing;
  }
  void require_text(const char* field, const std::vector<std::string>& allowed) const {
    if (has(field) && (!json_[field].is_string() ||
                       std::find(allowed.begin(), allowed.end(), json_[field].get<std::string>()) ==
                           allowed.end())) {
      refuse(field, fmt::format("supported is {}", fmt::join(allowed, " or ")));
    }
  }
  void require_flag(const char* field, bool value) const {
    if (flag(field, value) != value) {
      refuse(field, fmt::format("supported is {}", value));
    }
  }

 private:
  std::string source_;  // the flag and the file
  ordered_json json_;
};

// ---- names in model.safetensors

// Hugging Face once saved the causal masks of layer i as h.i.attn.bias and h.i.attn.masked_bias.
bool is_mask(const std::string& name, int layers) {
  for (int layer = 0; layer < layers; ++layer) {
    if (name == fmt::format("h.{}.attn.bias", layer) ||
        name == fmt::format("h.{}.attn.masked_bias", layer)) {
      return true;
    }
  }
  return false;
}

}  // namespace

HuggingFaceConfig read_huggingface_config(const std::string& directory, const std::string& flag) {
  const std::string path = directory + "/config.json";
  const MappedFile file(path, flag);
  HuggingFaceConfig result;
  result.json.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const Fields fields(flag + " " + path, result.json);

  fields.require_text("model_type", {"gpt2"});
  GptConfig& config = result.config;
  config.layers = fields.count("n_layer");
  config.hidden = fields.count("n_embd");
  config.heads = fields.count("n_head");
  config.vocabulary = fields.count("vocab_size");
  config.sequence = fields.count("n_positions");
  config.layernorm_epsilon = fields.number("layer_norm_epsilon", config.layernorm_epsilon);
  config.tied_head = fields.flag("tie_word_embeddings", true);
  if (!(config.layernorm_epsilon > 0)) {
    fields.refuse("layer_norm_epsilon", "a number above 0 is needed");
  }
  try {
    config.check();
  } catch (const UsageError& error) {
    fields.refuse(fmt::format("not supported: {}", error.what()));
  }

  fields.require_text("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  if (fields.has("n_inner") && fields.count("n_inner") != 4 * config.hidden) {
    fields.refuse("n_inner", fmt::format("supported is 4 n_embd = {}", 4 * config.hidden));
  }
  fields.require_flag("scale_attn_weights", true);
  fields.require_flag("scale_attn_by_inverse_layer_idx", false);
  fields.require_flag("reorder_and_upcast_attn", false);
  fields.require_flag("add_cross_attention", false);

  std::vector<std::string> dropouts;
  for (const char* field : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    if (fields.number(field, 0) != 0) {
      dropouts.push_back(fmt::format("{} {}", field, fields.number(field, 0)));
    }
  }
  if (!dropouts.empty()) {
    result.notes.push_back(
        fmt::format("{}: dropout is not applied ({})", path, fmt::join(dropouts, ", ")));
  }
  return result;
}

std::string exported_config(const GptConfig& config, const HuggingFaceConfig* source) {
  ordered_json json;
  if (source != nullptr) {
    json = ordered_json::parse(source->json);
    if (config.tied_head != source->config.tied_head) {
      json["tie_word_embeddings"] = config.tied_head;
    }
    for (const char* field : {"torch_dtype", "dtype"}) {
      if (json.contains(field)) {
        json[field] = "float32";  // of the weights beside it
      }
    }
    return json.dump(1) + "\n";
  }
  json["model_type"] = "gpt2";
  json["architectures"] = {"GPT2LMHeadModel"};
  json["vocab_size"] = config.vocabulary;
  json["n_positions"] = config.sequence;
  json["n_embd"] = config.hidden;
  json["n_layer"] = config.layers;
  json["n_head"] = config.heads;
  json["activation_function"] = "gelu_new";
  json["layer_norm_epsilon"] = config.layernorm_epsilon;
  json["resid_pdrop"] = 0.0;
  json["embd_pdrop"] = 0.0;
  json["attn_pdrop"] = 0.0;
  json["tie_word_embeddings"] = config.tied_head;
  if (config.vocabulary != 50257) {
    // The library's default ends texts with GPT-2's token 50256.
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
  }
  return json.dump(1) + "\n";
}

HuggingFaceWeights::HuggingFaceWeights(const std::string& directory, const GptConfig& config,
                                       const std::string& flag)
    : file_(directory + "/model.safetensors", flag) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(fmt::format("{} {}: {}", flag, file_.path(), what));
  };
  std::map<std::string, const TensorInfo*> found;
  for (const TensorInfo& tensor : file_.tensors()) {
    const std::string name = without_prefix(tensor.name);
    if (!found.emplace(name, &tensor).second) {
      refuse(fmt::format("tensor '{}' is there with and without '{}'", name, prefix));
    }
  }
  for (const Parameter& parameter : parameter_table(config)) {
    const auto entry = found.find(parameter.name);
    if (entry == found.end()) {
      refuse(fmt::format("tensor '{}' is missing", parameter.name));
    }
    const TensorInfo& tensor = *entry->second;
    if (tensor.shape != parameter.shape) {
      refuse(fmt::format("tensor '{}' has shape ({}); config.json asks for ({})", tensor.name,
                         fmt::join(tensor.shape, ", "), fmt::join(parameter.shape, ", ")));
    }
    if (!SafetensorsFile::readable(tensor)) {
      refuse(fmt::format("tensor '{}' has dtype {}; F32, F16, BF16 and F64 are read", tensor.name,
                         tensor.dtype));
    }
    found.erase(entry);
  }
  for (const auto& [name, tensor] : found) {
    if (name == "lm_head.weight" && config.tied_head) {
      const auto head = file_.data(*tensor);
      const auto embedding = file_.data(*find("wte.weight"));
      if (!std::equal(head.begin(), head.end(), embedding.begin(), embedding.end())) {
        refuse("lm_head.weight differs from wte.weight, but tie_word_embeddings is true");
      }
    } else if (!is_mask(name, config.layers)) {
      refuse(fmt::format("tensor '{}' has no place in a GPT-2 of {} layers", tensor->name,
                         config.layers));
    }
  }
}

const TensorInfo* HuggingFaceWeights::find(const std::string& name) const {
  const TensorInfo* tensor = file_.find(name);
  return tensor != nullptr ? tensor : file_.find(prefix + name);
}

std::vector<double> HuggingFaceWeights::values(const Parameter& parameter) const {
  const TensorInfo* tensor = find(parameter.name);
  return file_.values(tensor == nullptr ? *find("wte.weight") : *tensor);
}

}  // namespace pipetrain
