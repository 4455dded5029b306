#include <algorithm>
#include <map>

#include "kernels/sum_of_squares.h"
#include "pipetrain/model/parameters.h"

namespace pipetrain {

namespace {

// Where a parameter may begin in a run: at 256 bytes in every type, and where shards may be cut.
constexpr size_t alone_step = alignment / 2;
static_assert(kernels::norm_block % alone_step == 0);

size_t round_up(size_t value, size_t step) {
  return (value + step - 1) / step * step;
}

// fp32 and fp64 weights, and those of full precision, are their own masters.
bool has_own_master(const Parameter& parameter, Precision precision) {
  return precision == Precision::bf16 && !parameter.full_precision;
}

ElementRange intersection(size_t first, size_t last, size_t other_first, size_t other_last) {
  const size_t begin = std::max(first, other_first);
  const size_t end = std::min(last, other_last);
  return end > begin ? ElementRange{begin, end - begin} : ElementRange{begin, 0};
}

// How many elements of a unit have moments, and a separate master, on one copy.
size_t state_elements(const ParameterUnit& unit, const Sharding& sharding) {
  return sharding.split_state ? unit.elements / size_t(sharding.copies) : unit.elements;
}

// Of one element of the weights in use.
size_t weight_bytes(const ParameterUnit& unit, Precision precision) {
  return unit.separate_masters ? element_bytes(precision) : accumulator_bytes(precision);
}

}  // namespace

ElementRange without_padding(const ElementRange& range, size_t elements) {
  return intersection(range.first, range.first + range.count, 0, elements);
}

ElementRange ParameterUnit::shard_of(const Member& member, int copy, int copies) const {
  const size_t size = elements / size_t(copies);
  const ElementRange part = intersection(member.first, member.first + member.padded_elements,
                                         size_t(copy) * size, size_t(copy + 1) * size);
  return part.count == 0 ? ElementRange{} : ElementRange{part.first - member.first, part.count};
}

std::vector<ParameterUnit> parameter_units(const std::vector<Parameter>& table,
                                           const std::vector<StageLayers>& stages,
                                           Precision precision, int copies) {
  std::vector<ParameterUnit> units;
  const size_t step = copies == 1 ? alone_step : kernels::norm_block;
  // A stage has at most two units: separate masters or not.
  const auto add = [&](int stage, const std::vector<size_t>& indices) {
    for (const bool separate : {true, false}) {
      ParameterUnit unit{.stage = stage, .separate_masters = separate, .members = {}};
      for (const size_t index : indices) {
        if (has_own_master(table[index], precision) == separate) {
          const size_t padded = table[index].padded_elements;
          unit.members.push_back({index, unit.elements, padded});
          unit.elements += round_up(padded, step);
        }
      }
      unit.elements = round_up(unit.elements, step * size_t(copies));
      if (!unit.members.empty()) {
        units.push_back(std::move(unit));
      }
    }
  };
  const auto untied = [&](const StageLayers& stage) {
    std::vector<size_t> indices = held_parameters(table, {stage});
    std::erase_if(indices, [&](size_t index) { return table[index].tied; });
    return indices;
  };
  for (const size_t index : held_parameters(table, stages)) {
    if (table[index].tied) {
      add(-1, {index});
    }
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    add(int(stage), untied(stages[stage]));
  }
  return units;
}

ParameterStore::Bytes ParameterStore::bytes(const GptConfig& config,
                                            const std::vector<StageLayers>& stages,
                                            Precision precision, const Sharding& sharding,
                                            int versions) {
  const size_t element = element_bytes(precision);
  const size_t accumulator = accumulator_bytes(precision);
  Bytes result;
  for (const ParameterUnit& unit :
       parameter_units(parameter_table(config), stages, precision, sharding.copies)) {
    const size_t state = state_elements(unit, sharding) * accumulator;
    result.weights +=
        size_t(versions) * unit.elements * (unit.separate_masters ? element : accumulator);
    result.weights += unit.separate_masters ? state : 0;
    result.gradients += (unit.stage < 0 ? 2 : 1) * unit.elements * accumulator;
    result.optimizer += 2 * state;
  }
  return result;
}

ParameterStore::ParameterStore(const GptConfig& config, const std::vector<StageLayers>& stages,
                               Precision precision, Region& weights, Region& gradients,
                               Region& optimizer, const Sharding& sharding, int versions)
    : table_(parameter_table(config)), stages_(stages), sharding_(sharding), versions_(versions) {
  const size_t accumulator = accumulator_bytes(precision);
  for (ParameterUnit& unit : parameter_units(table_, stages, precision, sharding.copies)) {
    LocalUnit local{.unit = std::move(unit)};
    local.weight_element = weight_bytes(local.unit, precision);
    local.weight = weights.take_bytes(local.unit.elements * local.weight_element);
    units_.push_back(std::move(local));
  }
  if (!units_.empty()) {
    const LocalUnit& last = units_.back();
    std::byte* end = last.weight + aligned(last.unit.elements * last.weight_element);
    slot_ = {units_.front().weight, end};
  }
  weights.take_bytes(size_t(versions - 1) * slot_.size());
  std::map<size_t, LocalParameter> by_index;
  for (LocalUnit& local : units_) {
    const size_t state = state_elements(local.unit, sharding);
    std::byte* masters =
        local.unit.separate_masters ? weights.take_bytes(state * accumulator) : local.weight;
    local.gradient = gradients.take_bytes(local.unit.elements * accumulator);
    if (local.unit.stage < 0) {
      local.head_gradient = gradients.take_bytes(local.unit.elements * accumulator);
    }
    std::byte* moments1 = optimizer.take_bytes(state * accumulator);
    std::byte* moments2 = optimizer.take_bytes(state * accumulator);
    const size_t state_first = sharding.split_state ? size_t(sharding.copy) * state : 0;

    for (const ParameterUnit::Member& member : local.unit.members) {
      LocalParameter& parameter = by_index[member.table_index];
      parameter.table_index = member.table_index;
      parameter.parameter = &table_[member.table_index];
      parameter.shard = local.unit.shard_of(member, sharding.copy, sharding.copies);
      parameter.state =
          sharding.split_state ? parameter.shard : ElementRange{0, member.padded_elements};
      parameter.weight_element = local.weight_element;
      parameter.weight = local.weight + member.first * local.weight_element;
      parameter.gradient = local.gradient + member.first * accumulator;
      if (local.head_gradient != nullptr) {
        parameter.head_gradient = local.head_gradient + member.first * accumulator;
      }
      if (!local.unit.separate_masters) {
        parameter.master = parameter.weight;
      }
      if (parameter.state.count > 0) {
        const size_t offset = (member.first + parameter.state.first - state_first) * accumulator;
        parameter.moment1 = moments1 + offset;
        parameter.moment2 = moments2 + offset;
        if (local.unit.separate_masters) {
          parameter.master = masters + offset;
        }
      }
    }
  }
  for (auto& [index, parameter] : by_index) {
    local_.push_back(parameter);
  }
}

size_t ParameterStore::forward_bytes(const GptConfig& config,
                                     const std::vector<StageLayers>& stages, Precision precision) {
  size_t bytes = 0;
  for (const ParameterUnit& unit : parameter_units(parameter_table(config), stages, precision, 1)) {
    bytes += unit.elements * weight_bytes(unit, precision);
  }
  return bytes;
}

ParameterStore::ParameterStore(const GptConfig& config, const std::vector<StageLayers>& stages,
                               Precision precision, Region& weights)
    : table_(parameter_table(config)), stages_(stages) {
  std::map<size_t, LocalParameter> by_index;
  for (ParameterUnit& unit : parameter_units(table_, stages, precision, 1)) {
    LocalUnit local{.unit = std::move(unit)};
    local.weight_element = weight_bytes(local.unit, precision);
    local.weight = weights.take_bytes(local.unit.elements * local.weight_element);
    for (const ParameterUnit::Member& member : local.unit.members) {
      std::byte* const weight = local.weight + member.first * local.weight_element;
      by_index[member.table_index] = {.table_index = member.table_index,
                                      .parameter = &table_[member.table_index],
                                      .shard = {},
                                      .state = {},
                                      .weight = weight,
                                      .weight_element = local.weight_element,
                                      .master = weight};
    }
    units_.push_back(std::move(local));
  }
  for (auto& [index, parameter] : by_index) {
    local_.push_back(parameter);
  }
}

std::span<std::byte> ParameterStore::weights(int slot) const {
  return {slot_.data() + size_t(slot) * slot_.size(), slot_.size()};
}

ParameterStore ParameterStore::with_weights(int slot) const {
  ParameterStore other = *this;
  const std::ptrdiff_t distance = weights(slot).data() - slot_.data();
  for (LocalParameter& local : other.local_) {
    local.parameter = &other.table_[local.table_index];
    local.weight += distance;
  }
  for (LocalUnit& unit : other.units_) {
    unit.weight += distance;
  }
  return other;
}

const LocalParameter* ParameterStore::find(const std::string& name) const {
  const auto found = std::find_if(local_.begin(), local_.end(), [&](const LocalParameter& local) {
    return local.parameter->name == name;
  });
  return found == local_.end() ? nullptr : &*found;
}

}  // namespace pipetrain
