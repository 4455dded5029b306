#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pipetrain/device/memory.h"
#include "pipetrain/model/config.h"

namespace pipetrain {

// One row of the parameter table. Everything that treats parameters one by one (initial weights,
// import, export, norms, AdamW, checkpoints) walks this table and knows no names.
struct Parameter {
  enum class Init { normal, residual_normal, zero, one };  // N(0, .02), N(0, .02/sqrt(2L)), 0, 1

  std::string name;            // Hugging Face's, without the "transformer." prefix
  std::vector<size_t> shape;   // as in the file, row-major
  size_t padded_elements = 0;  // in memory: wte and lm_head have padded_vocabulary() rows
  Init init = Init::zero;
  bool decayed = false;  // weight decay: 2-D tensors
  // Used in the accumulator type whatever the precision: layer norms, whose weights are near 1,
  // where a step of bf16 is larger than an update.
  bool full_precision = false;
  bool tied = false;          // wte with a tied head: on the first and on the last stage
  int layer = -1;             // of a block; -1: embedding or head
  bool in_embedding = false;  // the stage that embeds holds it
  bool in_head = false;       // the stage with the head holds it

  size_t elements() const;  // of the real shape
};

// All parameters in global order: wte, wpe, blocks ascending, ln_f, lm_head if the head is not
// tied. Matrices are (in, out), as in Hugging Face's Conv1D; wte and lm_head are (V, C).
std::vector<Parameter> parameter_table(const GptConfig& config);

// Indices into the table of what a rank with these stages holds, each once, ascending.
std::vector<size_t> held_parameters(const std::vector<Parameter>& table,
                                    const std::vector<StageLayers>& stages);

// A parameter on this rank's device. T-typed memory is untyped here; see element_bytes().
struct LocalParameter {
  size_t table_index = 0;  // into parameter_table()
  const Parameter* parameter = nullptr;
  std::byte* weight = nullptr;  // used by the kernels: element type, see weight_element
  size_t weight_element = 0;    // bytes of one element of weight
  // Accumulator type from here on. fp32, fp64 and full_precision: master == weight.
  std::byte* master = nullptr;
  std::byte* gradient = nullptr;       // tied: the embedding's part
  std::byte* head_gradient = nullptr;  // tied: the head's part; nullptr otherwise
  std::byte* moment1 = nullptr;
  std::byte* moment2 = nullptr;
};

// All parameters of the stages that one rank holds, each once, in global order. A tied embedding
// has both gradient parts wherever it lies: a rank that holds only one end keeps the other part 0.
class ParameterStore {
 public:
  struct Bytes {
    size_t weights = 0;  // in use, and masters where they are separate
    size_t gradients = 0;
    size_t optimizer = 0;  // moments
  };
  static Bytes bytes(const GptConfig& config, const std::vector<StageLayers>& stages,
                     Precision precision);

  // Takes exactly bytes() from the three regions. Nothing is initialised. Masters, gradients,
  // first and second moments are each one run of memory in the order of parameters(), at the same
  // offsets; the head's gradient parts follow the gradients.
  ParameterStore(const GptConfig& config, const std::vector<StageLayers>& stages,
                 Precision precision, Region& weights, Region& gradients, Region& optimizer);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore(ParameterStore&&) = default;

  const std::vector<Parameter>& table() const { return table_; }
  const std::vector<LocalParameter>& parameters() const { return local_; }
  // nullptr if this rank does not hold it.
  const LocalParameter* find(const std::string& name) const;

 private:
  std::vector<Parameter> table_;
  std::vector<LocalParameter> local_;
};

// Initial values of a parameter, real shape, row-major, from a counter-based generator keyed by
// seed and name: the same for every partition.
std::vector<double> initial_values(const Parameter& parameter, const GptConfig& config,
                                   uint64_t seed);

}  // namespace pipetrain
