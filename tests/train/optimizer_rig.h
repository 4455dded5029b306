#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipetrain/train/optimizer.h"
#include "tests/train/device_values.h"

// An optimizer on ranks as threads, with gradients made from a formula instead of by a model.
namespace pipetrain::optimizer_rig {

inline constexpr int microbatches = 3;

inline GptConfig model() {
  GptConfig config;
  config.layers = 3;
  config.hidden = 16;
  config.heads = 2;
  config.vocabulary = 301;  // wte: two blocks of squares, and pad rows
  config.sequence = 8;
  return config;
}

// Stages of the ranks: one each, or two with rank 0 at both ends.
inline std::vector<std::vector<StageLayers>> loop(int ranks) {
  std::vector<std::vector<StageLayers>> stages;
  for (const StageLayers& stage : partition(model().layers, ranks)) {
    stages.push_back({stage});
  }
  return stages;
}
inline std::vector<std::vector<StageLayers>> both_ends_on_rank_0(int ranks) {
  const std::vector<StageLayers> all = partition(model().layers, 2 * ranks);
  std::vector<std::vector<StageLayers>> stages;
  for (size_t rank = 0; rank < size_t(ranks); ++rank) {
    stages.push_back({all[rank], all[all.size() - 1 - rank]});
  }
  return stages;
}

// A number that looks random, the same everywhere: between -1 and 1.
inline double noise(const std::string& name, size_t element, int64_t step) {
  const size_t hash = std::hash<std::string>()(name) + 7919 * element + 104729 * size_t(step);
  return std::sin(double(hash % 1'000'003));
}

inline double loss_of(int64_t step, int microbatch) {
  return 1.5 + noise("loss", size_t(microbatch), step);
}

struct Case {
  std::vector<std::vector<StageLayers>> stages;
  Precision precision = Precision::fp32;
  AdamwOptions options;
  int64_t steps = 10;
  std::optional<int> broken_rank;    // has a NaN in a gradient of step 4
  std::optional<int> stopping_rank;  // asks to stop in step 2
};

struct Outcome {
  std::map<std::string, std::vector<double>> masters;
  std::vector<StepResult> results;
};

// torch.optim.AdamW after clip_grad_norm_, in double, on one device.
Outcome reference(const Case& test);

// Runs the case and hands back what all ranks agree on.
Outcome run(const Case& test);

// One rank.
class Rank {
 public:
  Rank(const Case& test, Control& control)
      : test_(test),
        shape_{model(), test.precision, test.stages, control.rank(), microbatches},
        holder_(model(), test.stages[size_t(control.rank())], test.precision),
        buffer_(Optimizer::bytes(shape_)),
        region_(buffer_),
        pipeline_(control, ranks(), 1) {
    const std::vector<int> tied = Optimizer::tied_ranks(shape_);
    if (tied.size() == 2 && std::count(tied.begin(), tied.end(), control.rank()) != 0) {
      tied_.emplace(control, tied, 1);
    }
    set_weights(store(), test.precision,
                [](const Parameter& p) { return initial_values(p, model(), 1); });
    optimizer_ = Optimizer::make(shape_, test.options, store(), holder_.gradients(),
                                 {&pipeline_, tied_ ? &*tied_ : nullptr}, region_);
    EXPECT_EQ(region_.left(), 0u);
  }

  const ParameterStore& store() const { return holder_.store(); }
  Optimizer& optimizer() { return *optimizer_; }
  const Stream& stream() const { return stream_; }
  bool has(bool StageLayers::*end) const {
    const auto& stages = test_.stages[size_t(shape_.pipeline_rank)];
    return std::any_of(stages.begin(), stages.end(), [&](const auto& s) { return s.*end; });
  }

  // What forward and backward would leave behind.
  void fill_gradients(int64_t step) {
    for (const LocalParameter& local : store().parameters()) {
      const std::string& name = local.parameter->name;
      const size_t n = local.parameter->elements();
      std::vector<double> values(n);
      for (size_t i = 0; i < n; ++i) {
        values[i] = noise(name, i, step);
      }
      if (test_.broken_rank == shape_.pipeline_rank && step == 4) {
        values[n - 1] = NAN;
      }
      if (!local.parameter->tied || has(&StageLayers::embedding)) {
        upload(local.gradient, values);
      }
      if (local.parameter->tied && has(&StageLayers::head)) {
        for (size_t i = 0; i < n; ++i) {
          values[i] = noise("head", i, step);
        }
        upload(local.head_gradient, values);
      }
    }
    if (has(&StageLayers::head)) {
      std::vector<double> losses;
      for (int i = 0; i < microbatches; ++i) {
        losses.push_back(loss_of(step, i));
      }
      upload(optimizer_->losses(), losses);
    }
  }

  void submit(int64_t step) {
    for (size_t stage = 0; stage < store().stages().size(); ++stage) {
      optimizer_->reduce(int(stage), step, stream_);
    }
    optimizer_->submit(
        step,
        {1e-3 * double(step + 1), test_.stopping_rank == shape_.pipeline_rank && step == 2,
         double(10 * step + shape_.pipeline_rank)},
        {}, stream_);
  }

  std::vector<double> download(const std::byte* data, size_t count) const {
    return device_values(data, count, test_.precision);
  }

 private:
  std::vector<int> ranks() const {
    std::vector<int> all;
    for (size_t rank = 0; rank < test_.stages.size(); ++rank) {
      all.push_back(int(rank));
    }
    return all;
  }
  void upload(std::byte* to, const std::vector<double>& values) {
    set_device_values(to, values, test_.precision);
  }

  const Case& test_;
  Optimizer::Shape shape_;
  StoreHolder holder_;
  Buffer buffer_;
  Region region_;
  Communicator pipeline_;
  std::optional<Communicator> tied_;
  Stream stream_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace pipetrain::optimizer_rig
