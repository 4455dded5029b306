// Initial weights: normal values by the Box-Muller transform of a counter-based generator. Pair i
// of a parameter depends on the seed, the parameter's name and i, on nothing else.

#include <cmath>
#include <numbers>

#include "model/philox.h"
#include "pipetrain/error.h"
#include "pipetrain/model/parameters.h"
#include "pipetrain/progress.h"

namespace pipetrain {

namespace {

// FNV-1a, 64 bits.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

uint32_t low(uint64_t x) {
  return static_cast<uint32_t>(x);
}
uint32_t high(uint64_t x) {
  return static_cast<uint32_t>(x >> 32);
}

// In (0, 1), from 53 random bits.
double uniform(uint32_t a, uint32_t b) {
  const uint64_t bits = (uint64_t{a} << 32 | b) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

constexpr size_t values_between_reports = size_t(1) << 18;

std::vector<double> normal_values(size_t count, double deviation, uint64_t name_hash,
                                  uint64_t seed) {
  std::vector<double> values;
  values.reserve(count);  // filled, and so paid for, on the way
  for (size_t i = 0; i < count; i += 2) {
    if (i % values_between_reports == 0) {
      report_progress();
    }
    const uint64_t pair = i / 2;
    const auto words =
        philox({low(pair), high(pair), low(name_hash), high(name_hash)}, {low(seed), high(seed)});
    const double radius = deviation * std::sqrt(-2 * std::log(uniform(words[0], words[1])));
    const double angle = 2 * std::numbers::pi * uniform(words[2], words[3]);
    values.push_back(radius * std::cos(angle));
    if (i + 1 < count) {
      values.push_back(radius * std::sin(angle));
    }
  }
  return values;
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

std::vector<double> initial_values(const Parameter& parameter, const GptConfig& config,
                                   uint64_t seed) {
  constexpr double deviation = 0.02;
  switch (parameter.init) {
    case Parameter::Init::zero:
      return std::vector<double>(parameter.elements(), 0.0);
    case Parameter::Init::one:
      return std::vector<double>(parameter.elements(), 1.0);
    case Parameter::Init::normal:
      return normal_values(parameter.elements(), deviation, hash_of(parameter.name), seed);
    case Parameter::Init::residual_normal:
      return normal_values(parameter.elements(), deviation / std::sqrt(2.0 * config.layers),
                           hash_of(parameter.name), seed);
  }
  throw InternalError("parameter " + parameter.name + " has no kind of initial value");
}

}  // namespace pipetrain
