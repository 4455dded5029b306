#pragma once

#include <cstddef>

#include "pipetrain/model/config.h"

namespace pipetrain {

// N: elements of all parameters, padding left out, a tied head counted once.
size_t parameter_count(const GptConfig& config);

// Of forward and backward, per trained token: 6N for the matmuls and 6LCT for attention, causal
// scores counted once (Chowdhery et al. 2022, appendix B, count them twice). T is the length
// trained at.
double flops_per_token(const GptConfig& config, int sequence);

// Model FLOPs utilisation: the share of the dense peak of `devices` devices (operations per second
// of one) that training uses, whatever is computed again or shared among chunks and replicas.
double model_flops_utilisation(const GptConfig& config, int sequence, double tokens_per_second,
                               int devices, double peak_flops);

}  // namespace pipetrain
