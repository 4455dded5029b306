#pragma once

#include <cstdint>
#include <string>

namespace pipetrain {

enum class LrSchedule { constant, cosine, linear };

LrSchedule parse_lr_schedule(const std::string& text);  // throws UsageError naming --lr-schedule
std::string to_string(LrSchedule schedule);

struct LearningRate {
  LrSchedule schedule = LrSchedule::constant;
  double peak = 3e-4;        // --learning-rate
  double minimum = 0;        // --min-learning-rate: what cosine and linear approach
  int64_t warmup_steps = 0;  // linear rise: (step + 1) / warmup_steps of the peak
  int64_t steps = 1;         // the minimum would be reached at this step, the one after the last

  // Of step 0, 1, ... After the warm-up: the peak; or from the peak to the minimum along half a
  // cosine (Loshchilov and Hutter 2017, without restarts) or a line. Past the end: the minimum.
  double at(int64_t step) const;
};

}  // namespace pipetrain
