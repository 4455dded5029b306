#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// Ranks that hold the same parameters are copies of each other: they add their gradients and share
// the work, and with split_state the memory, of the optimizer.
struct Sharding {
  int copies = 1;
  int copy = 0;              // this rank's
  bool split_state = false;  // --zero 1: moments and separate masters of this copy's shard only

  friend bool operator==(const Sharding&, const Sharding&) = default;
};

struct ElementRange {
  size_t first = 0;
  size_t count = 0;
};
// The part of a range of padded elements that is not padding.
ElementRange without_padding(const ElementRange& range, size_t elements);

// Parameters that lie side by side in every kind of memory and are summed over the copies together.
// Every copy has one of `copies` equal shards of the run, in order; shards are cut at multiples of
// kernels::norm_block elements of each parameter.
struct ParameterUnit {
  struct Member {
    size_t table_index = 0;
    size_t first = 0;            // element of the run
    size_t padded_elements = 0;  // of the parameter
  };
  int stage = -1;                 // index into the rank's stages; -1: a tied embedding
  bool separate_masters = false;  // weights in use are masters rounded
  std::vector<Member> members;
  size_t elements = 0;  // of the run, gaps included

  // The part of a member's padded elements in the shard of `copy`.
  ElementRange shard_of(const Member& member, int copy, int copies) const;
};

// The units of a rank with these stages: a tied embedding, then stage by stage.
std::vector<ParameterUnit> parameter_units(const std::vector<Parameter>& table,
                                           const std::vector<StageLayers>& stages,
                                           Precision precision, int copies);

// A parameter on this rank's device. T-typed memory is untyped here; see element_bytes().
struct LocalParameter {
  size_t table_index = 0;  // into parameter_table()
  const Parameter* parameter = nullptr;
  ElementRange shard;  // of the padded elements: this copy's
  ElementRange state;  // what this copy updates: its shard with split_state, else everything
  std::byte* weight = nullptr;  // used by the kernels: element type, see weight_element
  size_t weight_element = 0;    // bytes of one element of weight
  // Accumulator type from here on.
  // Separate masters begin at state.first. fp32, fp64 and full_precision: master == weight.
  std::byte* master = nullptr;
  std::byte* gradient = nullptr;       // tied: the embedding's part
  std::byte* head_gradient = nullptr;  // tied: the head's part; nullptr otherwise
  std::byte* moment1 = nullptr;        // begin at state.first
  std::byte* moment2 = nullptr;

  bool separate_master() const { return master != weight; }
};

// A unit on this rank's device: its runs.
struct LocalUnit {
  ParameterUnit unit;
  std::byte* weight = nullptr;
  size_t weight_element = 0;
  std::byte* gradient = nullptr;
  std::byte* head_gradient = nullptr;  // of the tied embedding's unit, else nullptr
};

// All parameters of the stages that one rank holds, each once, in global order. A tied embedding
// has both gradient parts wherever it lies: a rank that holds only one end keeps the other part 0.
class ParameterStore {
 public:
  struct Bytes {
    size_t weights = 0;  // all versions in use, and masters where they are separate
    size_t gradients = 0;
    size_t optimizer = 0;  // moments
  };
  static Bytes bytes(const GptConfig& config, const std::vector<StageLayers>& stages,
                     Precision precision, const Sharding& sharding = {}, int versions = 1);

  // Takes exactly bytes() from the three regions. Nothing is initialised. `versions`: slots of
  // weights in use. Slot 0 holds the current ones, which parameters() and units() show; masters are
  // of these alone.
  ParameterStore(const GptConfig& config, const std::vector<StageLayers>& stages,
                 Precision precision, Region& weights, Region& gradients, Region& optimizer,
                 const Sharding& sharding = {}, int versions = 1);

  // Forward only: the weights in use alone. All other pointers of a parameter are nullptr, but
  // master == weight.
  static size_t forward_bytes(const GptConfig& config, const std::vector<StageLayers>& stages,
                              Precision precision);
  ParameterStore(const GptConfig& config, const std::vector<StageLayers>& stages,
                 Precision precision, Region& weights);
  ParameterStore(ParameterStore&&) = default;

  const std::vector<Parameter>& table() const { return table_; }
  const std::vector<LocalParameter>& parameters() const { return local_; }
  const std::vector<LocalUnit>& units() const { return units_; }
  const std::vector<StageLayers>& stages() const { return stages_; }
  const Sharding& sharding() const { return sharding_; }
  // nullptr if this rank does not hold it.
  const LocalParameter* find(const std::string& name) const;

  int versions() const { return versions_; }
  // All weights in use of one slot, side by side; every slot has the same layout.
  std::span<std::byte> weights(int slot) const;
  // What computes with the weights of that slot: the same parameters, gradients and all else.
  ParameterStore with_weights(int slot) const;

 private:
  ParameterStore(const ParameterStore&) = default;

  std::vector<Parameter> table_;
  std::vector<StageLayers> stages_;
  Sharding sharding_;
  std::vector<LocalParameter> local_;
  std::vector<LocalUnit> units_;
  int versions_ = 1;
  std::span<std::byte> slot_;  // slot 0; the others follow
};

// Initial values of a parameter, real shape, row-major, from a counter-based generator keyed by
// seed and name: the same for every partition.
std::vector<double> initial_values(const Parameter& parameter, const GptConfig& config,
                                   uint64_t seed);

}  // namespace pipetrain
