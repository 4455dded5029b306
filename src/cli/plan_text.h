#pragma once

#include <string>
#include <vector>

#include "cli/plan.h"

namespace pipetrain {

std::string to_table(const std::vector<Plan>& plans, const PlanOptions& options);
std::string to_json(const std::vector<Plan>& plans, const PlanOptions& options);

}  // namespace pipetrain
