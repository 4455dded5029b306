#pragma once

#include <string>
#include <vector>

#include "cli/bench.h"

namespace pipetrain {

std::string to_table(const std::vector<BenchResult>& results, const BenchOptions& options,
                     unsigned cores);
// An object, or with --schedule all an array.
std::string to_json(const std::vector<BenchResult>& results, const BenchOptions& options);

}  // namespace pipetrain
