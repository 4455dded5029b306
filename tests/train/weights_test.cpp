#include "pipetrain/train/weights.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "pipetrain/comm/grid.h"
#include "pipetrain/error.h"
#include "pipetrain/progress.h"
#include "tests/support/rank_threads.h"
#include "tests/train/device_values.h"
#include "tests/train/temporary.h"

namespace pipetrain {
namespace {

const std::string fixture = PIPETRAIN_TEST_DATA "/gpt2_l8_c32";

GptConfig model(bool tied = true) {
  GptConfig config;
  config.layers = 11;  // h.1 and h.10
  config.hidden = 16;
  config.heads = 2;
  config.vocabulary = 130;
  config.sequence = 8;
  config.tied_head = tied;
  return config;
}

ParameterValues initial(const GptConfig& config) {
  return [config](const Parameter& parameter) { return initial_values(parameter, config, 5); };
}

// Stage i on rank i; rank 0 writes.
using Body = std::function<void(const StoreHolder&, Control&)>;
void with_stores(int ranks, const GptConfig& config, Precision precision, const Body& body) {
  test::run_ranks(ranks, [&](Control& control) {
    const StageLayers stage = partition(config.layers, ranks)[size_t(control.rank())];
    const StoreHolder holder(config, {stage}, precision);
    body(holder, control);
  });
}

void export_from(int ranks, const GptConfig& config, Precision precision,
                 const ParameterValues& values, const std::string& directory,
                 const HuggingFaceConfig* source = nullptr) {
  std::filesystem::create_directories(directory);
  with_stores(ranks, config, precision, [&](const StoreHolder& holder, Control& control) {
    set_weights(holder.store(), precision, values);
    export_huggingface(directory, config, source, holder.store(), precision, control);
  });
}

// Fault: a large tensor takes longer than --timeout, and nothing is heard of it.
TEST(Weights, SettingAndWritingALargeTensorReportProgressOnTheWay) {
  constexpr size_t values = size_t(1) << 20;
  GptConfig config = model();
  config.vocabulary = int(4 * values / size_t(config.hidden));
  const TemporaryDirectory directory;
  with_stores(1, config, Precision::fp32, [&](const StoreHolder& holder, Control& control) {
    size_t reports = 0;
    const ProgressListener listener([&] { ++reports; });
    initial_values(holder.store().table().front(), config, 5);
    EXPECT_GE(reports, 4u);
    const auto zeros = [](const Parameter& parameter) {
      return std::vector<double>(parameter.elements());
    };
    reports = 0;
    set_weights(holder.store(), Precision::fp32, zeros);
    EXPECT_GE(reports, holder.store().parameters().size());
    reports = 0;
    export_huggingface(directory.path(), config, nullptr, holder.store(), Precision::fp32, control);
    EXPECT_GE(reports, holder.store().parameters().size());
    const HuggingFaceWeights file(directory.path(), config);
    reports = 0;
    file.values(holder.store().table().front());
    EXPECT_GE(reports, 4u);
  });
}

// Fault 26: initial weights depend on the number of ranks, or all stages are seeded alike.
TEST(Weights, ExportIsTheSameFileForEveryNumberOfRanks) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const TemporaryDirectory directory;
    std::string first;
    for (const int ranks : {1, 2, 3, 4}) {
      const std::string name = directory.file(std::to_string(ranks));
      export_from(ranks, model(), precision, initial(model()), name);
      const std::string file = read_file(name + "/model.safetensors");
      first = first.empty() ? file : first;
      EXPECT_TRUE(file == first) << ranks << " ranks";
    }
  }
}

TEST(Weights, ImportThenExportKeepsEveryBit) {
  const TemporaryDirectory directory;
  const HuggingFaceConfig source = read_huggingface_config(fixture);
  const HuggingFaceWeights weights(fixture, source.config);
  const auto values = [&](const Parameter& parameter) { return weights.values(parameter); };
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const std::string name = directory.file(to_string(precision));
    export_from(3, source.config, precision, values, name, &source);
    const SafetensorsFile exported(name + "/model.safetensors");
    const SafetensorsFile original(fixture + "/model.safetensors");
    ASSERT_EQ(exported.tensors().size(), original.tensors().size());
    for (const TensorInfo& tensor : original.tensors()) {
      const TensorInfo* other = exported.find(tensor.name);
      ASSERT_NE(other, nullptr) << tensor.name;
      EXPECT_EQ(other->shape, tensor.shape);
      EXPECT_EQ(other->dtype, "F32");
      EXPECT_EQ(exported.values(*other), original.values(tensor)) << tensor.name;
    }
    EXPECT_EQ(nlohmann::json::parse(read_file(name + "/config.json")),
              nlohmann::json::parse(source.json));
  }
}

// Fault 38: a save that fails takes the last good one with it.
TEST(Weights, AnExportThatFailsLeavesTheModelBeforeIt) {
  const TemporaryDirectory directory;
  export_from(1, model(), Precision::fp32, initial(model()), directory.path());
  const std::string config = read_file(directory.file("config.json"));
  const std::string weights = read_file(directory.file("model.safetensors"));
  GptConfig wider = model();
  wider.hidden *= 2;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {weights.size(), before.rlim_max};  // room for config.json alone
  setrlimit(RLIMIT_FSIZE, &small);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  EXPECT_THROW(export_from(1, wider, Precision::fp32, initial(wider), directory.path()), Error);
  std::signal(SIGXFSZ, handler);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(read_file(directory.file("config.json")), config);
  EXPECT_TRUE(read_file(directory.file("model.safetensors")) == weights);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 2);
}

TEST(Weights, UntiedHeadIsExportedAndReadBack) {
  const TemporaryDirectory directory;
  const GptConfig config = model(false);
  export_from(2, config, Precision::fp32, initial(config), directory.path());
  const HuggingFaceConfig read = read_huggingface_config(directory.path());
  EXPECT_FALSE(read.config.tied_head);
  const HuggingFaceWeights weights(directory.path(), read.config);
  for (const Parameter& parameter : parameter_table(config)) {
    std::vector<double> expected = initial_values(parameter, config, 5);
    for (double& value : expected) {
      value = double(float(value));
    }
    EXPECT_EQ(weights.values(parameter), expected) << parameter.name;
  }
  // What Hugging Face needs to find the transformer beside the head.
  const SafetensorsFile file(directory.file("model.safetensors"));
  EXPECT_NE(file.find("transformer.h.10.ln_1.weight"), nullptr);
  EXPECT_NE(file.find("lm_head.weight"), nullptr);
}

TEST(Weights, PadRowsAreZeroAndWeightsInUseAreRounded) {
  with_stores(1, model(), Precision::bf16, [](const StoreHolder& holder, Control&) {
    set_weights(holder.store(), Precision::bf16, [](const Parameter& parameter) {
      return std::vector<double>(parameter.elements(), 1 + std::ldexp(3, -9));  // between two
    });
    const LocalParameter& wte = *holder.store().find("wte.weight");
    const size_t padded = wte.parameter->padded_elements;
    ASSERT_EQ(padded, 256u * 16u);
    const std::vector<double> weight = device_bf16_values(wte.weight, padded);
    const std::vector<double> master = device_values(wte.master, padded, Precision::bf16);
    for (size_t i = 0; i < padded; ++i) {
      const bool real = i < wte.parameter->elements();
      ASSERT_EQ(master[i], real ? 1 + std::ldexp(3, -9) : 0);
      ASSERT_EQ(weight[i], real ? 1 + std::ldexp(1, -7) : 0);
    }
  });
}

TEST(Weights, GradientsAreWrittenInTheAccumulatorType) {
  std::vector<Precision> precisions = {Precision::bf16};
#ifdef PIPETRAIN_HOST
  precisions.push_back(Precision::fp64);
#endif
  for (const Precision precision : precisions) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("gradients.safetensors");
    with_stores(3, model(), precision, [&](const StoreHolder& holder, Control& control) {
      for (const LocalParameter& local : holder.store().parameters()) {
        std::vector<double> values(local.parameter->elements());
        std::iota(values.begin(), values.end(), double(local.table_index) + 0.25);
        set_device_values(local.gradient, values, precision);
      }
      write_tensors(path, StoredTensor::gradient, holder.store(), precision, control);
    });
    const SafetensorsFile file(path);
    const std::vector<Parameter> table = parameter_table(model());
    ASSERT_EQ(file.tensors().size(), table.size());
    for (size_t index = 0; index < table.size(); ++index) {
      const TensorInfo& tensor = *file.find(table[index].name);
      EXPECT_EQ(tensor.dtype, precision == Precision::fp64 ? "F64" : "F32");
      EXPECT_EQ(tensor.shape, table[index].shape);
      std::vector<double> values(tensor.elements());
      std::iota(values.begin(), values.end(), double(index) + 0.25);
      EXPECT_EQ(file.values(tensor), values) << tensor.name;
    }
  }
}

TEST(Weights, OnlyTheFirstReplicaWrites) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("weights.safetensors");
  test::run_ranks(4, [&](Control& control) {
    const Grid grid = make_grid(4, control.rank(), 2);
    const StageLayers stage = partition(11, 2)[size_t(grid.pipeline_rank())];
    const StoreHolder holder(model(), {stage}, Precision::fp32);
    set_weights(holder.store(), Precision::fp32, [&](const Parameter& parameter) {
      return std::vector<double>(parameter.elements(), grid.replica());
    });
    write_tensors(path, StoredTensor::master, holder.store(), Precision::fp32, control);
  });
  const SafetensorsFile file(path);
  for (const TensorInfo& tensor : file.tensors()) {
    EXPECT_EQ(file.values(tensor), std::vector<double>(tensor.elements())) << tensor.name;
  }
}

}  // namespace
}  // namespace pipetrain
