#include "train/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pipetrain/train/safetensors.h"
#include "train/temporary.h"

namespace pipetrain::test {
namespace {

struct Bounds {
  double gradient = 0;  // norm of the difference over the norm, per tensor
  double loss = 0;      // absolute for bf16, relative otherwise
  double norm = 0;      // relative
};

Bounds bounds_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return {1e-5, 1e-5, 1e-5};
    case Precision::fp64:
      return {1e-10, 1e-10, 1e-10};
    case Precision::bf16:
      return {3e-2, 5e-4, 1e-2};
  }
  return {};
}

const std::string& fixture_directory() {
  static const std::string directory = std::string(PIPETRAIN_TEST_DATA) + "/gpt2_l8_c32";
  return directory;
}

}  // namespace

void expect_matches_oracle(const Training& training, Precision precision) {
  const Bounds bounds = bounds_of(precision);
  const auto expected = nlohmann::json::parse(read_file(fixture_directory() + "/expected.json"));
  const std::vector<double> losses = expected["losses"];
  const std::vector<double> norms = expected["grad_norms"];
  ASSERT_EQ(training.losses().size(), losses.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(training.losses()[step], losses[step], bounds.loss * losses[step])
        << "step " << step;
    EXPECT_NEAR(training.norms()[step], norms[step], bounds.norm * norms[step]) << "step " << step;
  }
  const TemporaryDirectory directory;
  write_file(directory.file("ours.safetensors"), training.gradients);
  const SafetensorsFile ours(directory.file("ours.safetensors"), "ours");
  const SafetensorsFile oracle(fixture_directory() + "/gradients.safetensors", "oracle");
  ASSERT_EQ(ours.tensors().size(), oracle.tensors().size());
  for (const TensorInfo& tensor : oracle.tensors()) {
    ASSERT_NE(ours.find(tensor.name), nullptr) << tensor.name;
    const std::vector<double> want = oracle.values(tensor);
    const std::vector<double> have = ours.values(*ours.find(tensor.name));
    ASSERT_EQ(have.size(), want.size()) << tensor.name;
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += (have[i] - want[i]) * (have[i] - want[i]);
      size += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(difference), bounds.gradient * std::sqrt(size)) << tensor.name;
  }
}

}  // namespace pipetrain::test
