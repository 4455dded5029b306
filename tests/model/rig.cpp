#include "rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/elementwise.h"
#include "kernels/types.h"
#include "pipetrain/device/check.h"

namespace pipetrain::test {

namespace {

constexpr unsigned char guard = 0xA5;
constexpr unsigned char nan_byte = 0xFF;  // all bytes 0xFF are NaN in every element type

void to_device(std::byte* to, const std::vector<std::byte>& from) {
  check(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

std::vector<std::byte> to_host(const std::byte* from, size_t bytes) {
  std::vector<std::byte> result(bytes);
  check(cudaMemcpy(result.data(), from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return result;
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> result(values.size() * sizeof(T));
  std::memcpy(result.data(), values.data(), result.size());
  return result;
}

// `count` elements, zeros after the given values.
template <typename T>
std::vector<std::byte> padded(const std::vector<double>& values, size_t count) {
  std::vector<T> result(count, T(0.0F));
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_same_v<T, double>) {
      result[i] = values[i];
    } else {
      result[i] = T(static_cast<float>(values[i]));
    }
  }
  return bytes_of(result);
}

std::vector<double> accumulators(const std::byte* from, size_t count, Precision precision) {
  const std::vector<std::byte> bytes = to_host(from, count * accumulator_bytes(precision));
  std::vector<double> result(count);
  for (size_t i = 0; i < count; ++i) {
    if (precision == Precision::fp64) {
      std::memcpy(&result[i], &bytes[i * sizeof(double)], sizeof(double));
    } else {
      float value = 0;
      std::memcpy(&value, &bytes[i * sizeof(float)], sizeof(float));
      result[i] = static_cast<double>(value);
    }
  }
  return result;
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes) : buffer_(aligned(bytes) + alignment) {
  check(cudaMemset(buffer_.data() + this->bytes(), guard, alignment), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void GuardedBuffer::fill(unsigned char value, const Stream& stream) const {
  check(cudaMemsetAsync(data(), value, bytes(), stream.get()), "cudaMemsetAsync");
}

void GuardedBuffer::expect_intact(const std::string& what) const {
  for (const std::byte byte : to_host(data() + bytes(), alignment)) {
    ASSERT_EQ(static_cast<unsigned char>(byte), guard) << "written behind " << what;
  }
}

Rig::Rig(const GptConfig& config, const MicrobatchShape& shape, Precision precision,
         const std::vector<StageLayers>& chunks, Stores stores, const SlotPolicy& policy)
    : config_(config), shape_(shape), precision_(precision), chunks_(chunks), policy_(policy) {
  std::vector<std::vector<StageLayers>> ranks;
  if (stores == Stores::one) {
    ranks.push_back(chunks);
  } else {
    for (const StageLayers& chunk : chunks) {
      ranks.push_back({chunk});
    }
  }
  for (const std::vector<StageLayers>& rank : ranks) {
    const ParameterStore::Bytes bytes = ParameterStore::bytes(config, rank, precision);
    Region regions[3];
    const size_t sizes[] = {bytes.weights, bytes.gradients, bytes.optimizer};
    for (int i = 0; i < 3; ++i) {
      store_memory_.push_back(std::make_unique<Buffer>(std::max(sizes[i], alignment)));
      regions[i] = Region(store_memory_.back()->data(), sizes[i]);
    }
    stores_.push_back(std::make_unique<ParameterStore>(config, rank, precision, regions[0],
                                                       regions[1], regions[2]));
    for (const Region& region : regions) {
      EXPECT_EQ(region.left(), 0U) << "bytes() and the constructor disagree";
    }
  }
  workspace_memory_ =
      std::make_unique<GuardedBuffer>(workspace_bytes(config, shape, precision, chunks, policy));
  Region region(workspace_memory_->data(),
                workspace_bytes(config, shape, precision, chunks, policy));
  workspace_ = make_gpt_workspace(config, shape, precision, chunks, policy, region);
  EXPECT_EQ(region.left(), 0U) << "workspace_bytes() and the workspace disagree";
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    stages_.push_back(make_gpt_stage(config, shape, precision, chunks[chunk], store_of(chunk),
                                     data_, *workspace_));
  }
  slots_.resize(chunks.size());
  gradient_slots_.resize(chunks.size());
  const size_t message = message_bytes(config, shape, precision);
  message_ = std::make_unique<GuardedBuffer>(message);
  next_message_ = std::make_unique<GuardedBuffer>(message);
  scale_ = std::make_unique<Buffer>(sizeof(double));
}

void Rig::set_weights(const Values& values) {
  for (const auto& store : stores_) {
    for (const LocalParameter& local : store->parameters()) {
      const std::vector<double>& real = values.at(local.parameter->name);
      ASSERT_EQ(real.size(), local.parameter->elements()) << local.parameter->name;
      const size_t count = local.parameter->padded_elements;
      to_device(local.master, precision_ == Precision::fp64 ? padded<double>(real, count)
                                                            : padded<float>(real, count));
      if (local.weight != local.master) {
        to_device(local.weight, padded<kernels::bf16>(real, count));
      }
    }
  }
}

void Rig::load(const std::vector<int>& inputs, const std::vector<int>& targets) {
  const auto rows = static_cast<size_t>(shape_.rows());
  microbatches_ = static_cast<int>(inputs.size() / rows);
  ASSERT_EQ(inputs.size(), static_cast<size_t>(microbatches_) * rows);
  ASSERT_EQ(targets.size(), inputs.size());
  const size_t bytes = inputs.size() * sizeof(int);
  tokens_ = std::make_unique<Buffer>(2 * aligned(bytes));
  to_device(tokens_->data(), bytes_of(inputs));
  to_device(tokens_->data() + aligned(bytes), bytes_of(targets));
  losses_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(microbatches_) *
                                            accumulator_bytes(precision_));
  const auto valid = std::count_if(targets.begin(), targets.end(), [](int t) { return t >= 0; });
  const double scale = 1.0 / static_cast<double>(valid);
  to_device(scale_->data(), precision_ == Precision::fp64
                                ? bytes_of(std::vector<double>{scale})
                                : bytes_of(std::vector<float>{static_cast<float>(scale)}));
  data_.inputs = reinterpret_cast<const int*>(tokens_->data());
  data_.targets = reinterpret_cast<const int*>(tokens_->data() + aligned(bytes));
  data_.loss_scale = scale_->data();
  data_.losses = losses_->data();
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    while (slots_[chunk].size() < static_cast<size_t>(microbatches_)) {
      slots_[chunk].emplace_back(
          activation_slot_bytes(config_, shape_, precision_, chunks_[chunk], policy_));
      gradient_slots_[chunk].emplace_back(
          gradient_slot_bytes(config_, shape_, precision_, chunks_[chunk], policy_));
    }
  }
}

void Rig::forward(int microbatch, bool keep) {
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    std::byte* slot = slots_[chunk][static_cast<size_t>(microbatch)].data();
    if (!chunks_[chunk].embedding) {
      stages_[chunk]->load_input(slot, message_->data(), stream_);
      message_->fill(nan_byte, stream_);
    }
    workspace_memory_->fill(nan_byte, stream_);
    stages_[chunk]->forward(microbatch, slot, chunks_[chunk].head ? nullptr : next_message_->data(),
                            keep, stream_);
    std::swap(message_, next_message_);
  }
}

void Rig::backward(int microbatch, Backward kind) {
  for (size_t chunk = chunks_.size(); chunk-- > 0;) {
    std::byte* slot = slots_[chunk][static_cast<size_t>(microbatch)].data();
    std::byte* gradient_slot = kind == Backward::whole
                                   ? nullptr
                                   : gradient_slots_[chunk][static_cast<size_t>(microbatch)].data();
    std::byte* input_gradient = chunks_[chunk].embedding ? nullptr : next_message_->data();
    workspace_memory_->fill(nan_byte, stream_);
    if (!chunks_[chunk].head) {
      stages_[chunk]->load_output_gradient(slot, gradient_slot, message_->data(), stream_);
      message_->fill(nan_byte, stream_);
    }
    if (kind == Backward::whole) {
      stages_[chunk]->backward(microbatch, slot, input_gradient, stream_);
    } else {
      stages_[chunk]->backward_input(microbatch, slot, gradient_slot, input_gradient, stream_);
    }
    if (kind == Backward::split) {
      workspace_memory_->fill(nan_byte, stream_);
      stages_[chunk]->backward_weight(microbatch, slot, gradient_slot, stream_);
    }
    std::swap(message_, next_message_);
  }
}

void Rig::run_step(const std::vector<int>& inputs, const std::vector<int>& targets, Backward kind) {
  load(inputs, targets);
  for (const auto& store : stores_) {
    for (const LocalParameter& local : store->parameters()) {
      const size_t bytes = local.parameter->padded_elements * accumulator_bytes(precision_);
      kernels::zero(local.gradient, bytes, stream_.get());
      if (local.head_gradient != nullptr) {
        kernels::zero(local.head_gradient, bytes, stream_.get());
      }
    }
  }
  for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
    forward(microbatch, true);
  }
  for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
    backward(microbatch, kind);
  }
  if (kind == Backward::split_late) {
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
        const auto index = static_cast<size_t>(microbatch);
        workspace_memory_->fill(nan_byte, stream_);
        stages_[chunk]->backward_weight(microbatch, slots_[chunk][index].data(),
                                        gradient_slots_[chunk][index].data(), stream_);
      }
    }
  }
  expect_intact();
}

void Rig::evaluate(const std::vector<int>& inputs, const std::vector<int>& targets) {
  load(inputs, targets);
  for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
    forward(microbatch, false);
  }
  expect_intact();
}

void Rig::expect_intact() const {
  stream_.synchronize();
  workspace_memory_->expect_intact("the workspace");
  message_->expect_intact("a message");
  next_message_->expect_intact("a message");
  losses_->expect_intact("the losses");
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (const GuardedBuffer& buffer : slots_[chunk]) {
      buffer.expect_intact("an activation slot");
    }
    for (const GuardedBuffer& buffer : gradient_slots_[chunk]) {
      buffer.expect_intact("a gradient slot");
    }
  }
}

std::vector<double> Rig::losses() const {
  return accumulators(losses_->data(), static_cast<size_t>(microbatches_), precision_);
}

double Rig::loss() const {
  const std::vector<double> parts = losses();
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

Values Rig::gradients() const {
  Values result;
  for (const auto& store : stores_) {
    for (const LocalParameter& local : store->parameters()) {
      const size_t count = local.parameter->elements();
      std::vector<double>& sum = result[local.parameter->name];
      sum.resize(count, 0.0);
      for (const std::byte* part : {local.gradient, local.head_gradient}) {
        if (part != nullptr) {
          const std::vector<double> values = accumulators(part, count, precision_);
          std::transform(sum.begin(), sum.end(), values.begin(), sum.begin(), std::plus<>());
        }
      }
    }
  }
  return result;
}

Values Rig::head_gradients() const {
  Values result;
  for (const auto& store : stores_) {
    for (const LocalParameter& local : store->parameters()) {
      if (local.head_gradient != nullptr) {
        const size_t count = local.parameter->elements();
        std::vector<double>& sum = result[local.parameter->name];
        sum.resize(count, 0.0);
        const std::vector<double> values = accumulators(local.head_gradient, count, precision_);
        std::transform(sum.begin(), sum.end(), values.begin(), sum.begin(), std::plus<>());
      }
    }
  }
  return result;
}

double Rig::padding() const {
  double largest = 0;
  for (const auto& store : stores_) {
    for (const LocalParameter& local : store->parameters()) {
      const size_t real = local.parameter->elements();
      const size_t count = local.parameter->padded_elements;
      for (const std::byte* part : {local.gradient, local.head_gradient}) {
        if (part != nullptr) {
          const std::vector<double> values = accumulators(part, count, precision_);
          for (size_t i = real; i < count; ++i) {
            largest = std::isnan(values[i]) ? INFINITY : std::max(largest, std::abs(values[i]));
          }
        }
      }
    }
  }
  return largest;
}

std::vector<SlotPolicy> all_policies() {
  std::vector<SlotPolicy> policies;
  for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
    for (const Defer defer : {Defer::all, Defer::cheap}) {
      policies.push_back({recompute, defer});
    }
  }
  return policies;
}

Values lively_weights(const GptConfig& config, uint64_t seed) {
  Values result;
  for (const Parameter& parameter : parameter_table(config)) {
    std::vector<double> values = initial_values(parameter, config, seed);
    std::mt19937 random(static_cast<uint32_t>(seed + parameter.name.size()));
    std::normal_distribution<double> normal(0.0, parameter.decayed ? 0.1 : 0.2);
    for (double& value : values) {
      value += normal(random);
    }
    result[parameter.name] = values;
  }
  return result;
}

std::vector<int> some_tokens(size_t count, int vocabulary, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> uniform(0, vocabulary - 1);
  std::vector<int> result(count);
  for (int& token : result) {
    token = uniform(random);
  }
  return result;
}

}  // namespace pipetrain::test
