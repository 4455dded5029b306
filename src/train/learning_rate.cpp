#include "pipetrain/train/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

struct Name {
  LrSchedule schedule;
  const char* text;
};
constexpr Name names[] = {{LrSchedule::constant, "constant"},
                          {LrSchedule::cosine, "cosine"},
                          {LrSchedule::linear, "linear"}};

}  // namespace

LrSchedule parse_lr_schedule(const std::string& text) {
  for (const Name& name : names) {
    if (text == name.text) {
      return name.schedule;
    }
  }
  throw UsageError(fmt::format("--lr-schedule {}: must be constant, cosine or linear", text));
}

std::string to_string(LrSchedule schedule) {
  return std::find_if(std::begin(names), std::end(names),
                      [&](const Name& name) { return name.schedule == schedule; })
      ->text;
}

double LearningRate::at(int64_t step) const {
  if (step < warmup_steps) {
    return peak * double(step + 1) / double(warmup_steps);
  }
  if (schedule == LrSchedule::constant) {
    return peak;
  }
  if (step >= steps) {
    return minimum;
  }
  const double progress = double(step - warmup_steps) / double(steps - warmup_steps);
  const double height = schedule == LrSchedule::linear
                            ? 1 - progress
                            : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return minimum + (peak - minimum) * height;
}

}  // namespace pipetrain
