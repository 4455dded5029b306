// The eight-layer fixture against float64 PyTorch, and against itself: the result does not depend
// on how the layers are spread over chunks, nor on whether the backward is split.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rig.h"

namespace pipetrain::test {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(PIPETRAIN_TEST_DATA) + "/gpt2_l8_c32/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <typename T>
std::vector<double> numbers(const std::string& bytes, size_t begin, size_t end) {
  std::vector<T> values((end - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(T));
  return {values.begin(), values.end()};
}

Values read_tensors(const std::string& name) {
  const std::string bytes = read_file(name);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  Values result;
  for (const auto& [tensor, entry] : header.items()) {
    if (tensor == "__metadata__") {
      continue;
    }
    const size_t begin = 8 + length + entry["data_offsets"][0].get<size_t>();
    const size_t end = 8 + length + entry["data_offsets"][1].get<size_t>();
    result[tensor] = entry["dtype"] == "F64" ? numbers<double>(bytes, begin, end)
                                             : numbers<float>(bytes, begin, end);
  }
  return result;
}

struct Fixture {
  static constexpr int microbatches = 8;
  static constexpr MicrobatchShape shape{2, 32};
  GptConfig config;
  Values weights = read_tensors("model.safetensors");
  Values gradients = read_tensors("gradients.safetensors");
  double loss = nlohmann::json::parse(read_file("expected.json"))["losses"][0];
  std::vector<int> inputs;
  std::vector<int> targets;

  Fixture() {
    const auto json = nlohmann::json::parse(read_file("config.json"));
    config.layers = json["n_layer"];
    config.hidden = json["n_embd"];
    config.heads = json["n_head"];
    config.vocabulary = json["vocab_size"];
    config.sequence = json["n_positions"];
    const std::string bytes = read_file("tokens.bin");
    constexpr size_t header = 256 * sizeof(int32_t);
    for (size_t i = 0; i < static_cast<size_t>(microbatches * shape.rows()); ++i) {
      uint16_t pair[2];
      std::memcpy(pair, bytes.data() + header + i * sizeof(uint16_t), sizeof(pair));
      inputs.push_back(pair[0]);
      targets.push_back(pair[1]);
    }
  }
};

const Fixture& fixture() {
  static const Fixture instance;
  return instance;
}

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) {
    squares += value * value;
  }
  return std::sqrt(squares);
}

double relative_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  std::vector<double> difference(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    difference[i] = actual.at(i) - expected[i];
  }
  return norm(difference) / norm(expected);
}

struct Result {
  std::vector<double> losses;
  Values gradients;
  Values head_gradients;
  friend bool operator==(const Result&, const Result&) = default;
};

Result run(Precision precision, const std::vector<StageLayers>& chunks, Backward backward,
           Stores stores = Stores::one) {
  Rig rig(fixture().config, Fixture::shape, precision, chunks, stores);
  rig.set_weights(fixture().weights);
  rig.run_step(fixture().inputs, fixture().targets, backward);
  EXPECT_EQ(rig.padding(), 0) << "the padding of a gradient is not 0";
  return {rig.losses(), rig.gradients(), rig.head_gradients()};
}

void expect_close(Precision precision, double gradient_tolerance, double loss_tolerance) {
  const Result result = run(precision, partition(8, 1), Backward::whole);
  double loss = 0;
  for (const double part : result.losses) {
    loss += part;
  }
  EXPECT_NEAR(loss, fixture().loss, loss_tolerance);
  ASSERT_EQ(result.gradients.size(), fixture().gradients.size());
  double worst = 0;
  std::string where;
  for (const auto& [name, expected] : fixture().gradients) {
    const double error = relative_error(result.gradients.at(name), expected);
    EXPECT_LE(error, gradient_tolerance) << name;
    if (!(error <= worst)) {
      worst = error;
      where = name;
    }
  }
  std::printf("%s: largest error %.2e in %s, loss off by %.1e\n", to_string(precision).c_str(),
              worst, where.c_str(), std::abs(loss - fixture().loss));
}

TEST(Fixture, FirstGradientsAreThoseOfFloat64PyTorchInFp32) {
  expect_close(Precision::fp32, 1e-5, 1e-5);
}

TEST(Fixture, FirstGradientsAreThoseOfFloat64PyTorchInBf16) {
  expect_close(Precision::bf16, 3e-2, 5e-4);
}

#ifdef PIPETRAIN_HOST
TEST(Fixture, FirstGradientsAreThoseOfFloat64PyTorchInFp64) {
  expect_close(Precision::fp64, 1e-10, 1e-10);
}
#endif

void expect_same_bits(const Result& result, const Result& expected) {
  EXPECT_EQ(result.losses, expected.losses);
  for (const auto& [name, values] : expected.gradients) {
    EXPECT_EQ(result.gradients.at(name), values) << name;
  }
  EXPECT_EQ(result.head_gradients, expected.head_gradients);
}

TEST(Fixture, BitsDoNotDependOnTheChunks) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Result one = run(precision, partition(8, 1), Backward::whole);
    expect_same_bits(run(precision, partition(8, 4), Backward::whole), one);
    expect_same_bits(run(precision, partition(8, 3), Backward::whole, Stores::per_chunk), one);
    expect_same_bits(run(precision, partition(8, 10), Backward::whole, Stores::per_chunk), one);
    expect_same_bits(run(precision, partition(8, 5, {0, 3, 0, 5, 0}), Backward::whole), one);
  }
}

// Fault 24: a split backward counts a tied weight twice, or drops a consumer of a fused output.
TEST(Fixture, BitsDoNotDependOnSplittingTheBackward) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Result whole = run(precision, partition(8, 3), Backward::whole);
    expect_same_bits(run(precision, partition(8, 3), Backward::split), whole);
    expect_same_bits(run(precision, partition(8, 3), Backward::split_late), whole);
    expect_same_bits(run(precision, partition(8, 5, {0, 3, 0, 5, 0}), Backward::split_late), whole);
    expect_same_bits(run(precision, partition(8, 1), Backward::split_late, Stores::per_chunk),
                     whole);
  }
}

// Fault 14: with the ends on two ranks each has its own part of the tied gradient.
TEST(Fixture, EachEndAddsItsOwnPartOfTheTiedGradient) {
  const Result one = run(Precision::fp32, partition(8, 2), Backward::whole, Stores::per_chunk);
  const std::vector<double>& head = one.head_gradients.at("wte.weight");
  EXPECT_GT(norm(head), 0);
  EXPECT_GT(relative_error(one.gradients.at("wte.weight"), head), 1e-3);
}

}  // namespace
}  // namespace pipetrain::test
