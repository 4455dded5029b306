#pragma once

#include <string>
#include <vector>

#include "pipetrain/model/parameters.h"
#include "pipetrain/train/safetensors.h"

namespace pipetrain {

// config.json of a Hugging Face GPT-2.
struct HuggingFaceConfig {
  GptConfig config;
  std::string json;                // the file as it was
  std::vector<std::string> notes;  // lines for the log: what is in the file and not applied
};

// `flag` names the directory in messages. Throws UsageError: no such file, not JSON, not a GPT-2, a
// field that is missing or wrong, or one that asks for another computation than ours
// (activation_function other than the tanh GELU, n_inner other than 4 n_embd,
// scale_attn_by_inverse_layer_idx, reorder_and_upcast_attn).
HuggingFaceConfig read_huggingface_config(const std::string& directory,
                                          const std::string& flag = "--init");

// config.json for an export: that of the import with everything in it, or a new one. `config` says
// whether the head is tied.
std::string exported_config(const GptConfig& config, const HuggingFaceConfig* source);

// The weights in a directory's model.safetensors.
class HuggingFaceWeights {
 public:
  // Throws UsageError that begins with `flag` unless every parameter is there once, by its exact
  // name (with or without "transformer."), with its shape, and nothing else is but attention masks
  // and a copy of a tied head.
  HuggingFaceWeights(const std::string& directory, const GptConfig& config,
                     const std::string& flag = "--init");

  // Of the file, see SafetensorsFile.
  uint64_t checksum() const { return file_.checksum(); }
  // Real shape, row-major. A head that the file does not have is the embedding's matrix.
  std::vector<double> values(const Parameter& parameter) const;

 private:
  const TensorInfo* find(const std::string& name) const;  // without the prefix

  SafetensorsFile file_;
};

}  // namespace pipetrain
