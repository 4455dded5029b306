#pragma once

#include <functional>
#include <string>

#include "pipetrain/schedule/schedule.h"

namespace pipetrain::schedule {

// How errors speak of an entry of a rank's list: "line 1, cell 4 (0B1)".
using EntryName = std::function<std::string(int rank, int position)>;

// validate() with other names: of the whole (`source`) and of its entries.
std::vector<std::string> validate_named(const Schedule& schedule, const std::string& source,
                                        const EntryName& name);

}  // namespace pipetrain::schedule
