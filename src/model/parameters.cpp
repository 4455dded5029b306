#include "pipetrain/model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace pipetrain {

namespace {

// A parameter of every block; sizes are multiples of C.
struct BlockRow {
  const char* suffix;
  size_t inputs;  // 0: a vector
  size_t outputs;
  Parameter::Init init;
  bool full_precision = false;
};

constexpr BlockRow block_rows[] = {
    {"ln_1.weight", 0, 1, Parameter::Init::one, true},
    {"ln_1.bias", 0, 1, Parameter::Init::zero, true},
    {"attn.c_attn.weight", 1, 3, Parameter::Init::normal},
    {"attn.c_attn.bias", 0, 3, Parameter::Init::zero},
    {"attn.c_proj.weight", 1, 1, Parameter::Init::residual_normal},
    {"attn.c_proj.bias", 0, 1, Parameter::Init::zero},
    {"ln_2.weight", 0, 1, Parameter::Init::one, true},
    {"ln_2.bias", 0, 1, Parameter::Init::zero, true},
    {"mlp.c_fc.weight", 1, 4, Parameter::Init::normal},
    {"mlp.c_fc.bias", 0, 4, Parameter::Init::zero},
    {"mlp.c_proj.weight", 4, 1, Parameter::Init::residual_normal},
    {"mlp.c_proj.bias", 0, 1, Parameter::Init::zero},
};

size_t product(const std::vector<size_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

Parameter make(const std::string& name, const std::vector<size_t>& shape, Parameter::Init init) {
  Parameter parameter;
  parameter.name = name;
  parameter.shape = shape;
  parameter.padded_elements = product(shape);
  parameter.init = init;
  parameter.decayed = shape.size() == 2;
  return parameter;
}

bool holds(const StageLayers& stage, const Parameter& parameter) {
  return (stage.embedding && parameter.in_embedding) || (stage.head && parameter.in_head) ||
         (parameter.layer >= stage.first_layer &&
          parameter.layer < stage.first_layer + stage.layers && parameter.layer >= 0);
}

}  // namespace

size_t Parameter::elements() const {
  return product(shape);
}

std::vector<Parameter> parameter_table(const GptConfig& config) {
  const auto channels = static_cast<size_t>(config.hidden);
  const auto vocabulary = static_cast<size_t>(config.vocabulary);
  const size_t padded = static_cast<size_t>(config.padded_vocabulary()) * channels;
  std::vector<Parameter> table;

  Parameter tokens = make("wte.weight", {vocabulary, channels}, Parameter::Init::normal);
  tokens.padded_elements = padded;
  tokens.in_embedding = true;
  tokens.in_head = config.tied_head;
  tokens.tied = config.tied_head;
  table.push_back(tokens);

  Parameter positions =
      make("wpe.weight", {static_cast<size_t>(config.sequence), channels}, Parameter::Init::normal);
  positions.in_embedding = true;
  table.push_back(positions);

  for (int layer = 0; layer < config.layers; ++layer) {
    for (const BlockRow& row : block_rows) {
      std::vector<size_t> shape{row.outputs * channels};
      if (row.inputs > 0) {
        shape.insert(shape.begin(), row.inputs * channels);
      }
      Parameter parameter = make(fmt::format("h.{}.{}", layer, row.suffix), shape, row.init);
      parameter.layer = layer;
      parameter.full_precision = row.full_precision;
      table.push_back(parameter);
    }
  }

  for (const auto& [name, init] : {std::pair{"ln_f.weight", Parameter::Init::one},
                                   std::pair{"ln_f.bias", Parameter::Init::zero}}) {
    Parameter parameter = make(name, {channels}, init);
    parameter.full_precision = true;
    parameter.in_head = true;
    table.push_back(parameter);
  }
  if (!config.tied_head) {
    Parameter head = make("lm_head.weight", {vocabulary, channels}, Parameter::Init::normal);
    head.padded_elements = padded;
    head.in_head = true;
    table.push_back(head);
  }
  return table;
}

std::vector<size_t> held_parameters(const std::vector<Parameter>& table,
                                    const std::vector<StageLayers>& stages) {
  std::vector<size_t> indices;
  for (size_t index = 0; index < table.size(); ++index) {
    if (std::any_of(stages.begin(), stages.end(),
                    [&](const StageLayers& stage) { return holds(stage, table[index]); })) {
      indices.push_back(index);
    }
  }
  return indices;
}

}  // namespace pipetrain
