#include "pipetrain/model/flops.h"

#include "pipetrain/model/parameters.h"

namespace pipetrain {

size_t parameter_count(const GptConfig& config) {
  size_t count = 0;
  for (const Parameter& parameter : parameter_table(config)) {
    count += parameter.elements();
  }
  return count;
}

double flops_per_token(const GptConfig& config, int sequence) {
  return 6.0 * static_cast<double>(parameter_count(config)) +
         6.0 * config.layers * config.hidden * sequence;
}

double model_flops_utilisation(const GptConfig& config, int sequence, double tokens_per_second,
                               int devices, double peak_flops) {
  return flops_per_token(config, sequence) * tokens_per_second / (devices * peak_flops);
}

}  // namespace pipetrain
