#pragma once

#include <string>

#include "pipetrain/schedule/schedule.h"

namespace pipetrain::schedule {

// PyTorch's schedule CSV: a row per rank, cells like 0F0, 0I0, 0W0, 0B0, (0F7;7B3)OVERLAP_F_B; an
// empty cell is an idle step. Two dialects are read: today's, and the older one in which B is the
// input gradient where the same (stage, micro-batch) also has a W, and BW is the whole backward.
// Placement and m are read off the cells; a file of forwards alone is forward_only. Where there are
// cells of communication or updates they must be complete and in a legal order, and are left out:
// lower() puts them in again. What the cells do not say is lost: without OPTIMIZER_STEP behind
// every backward an asynchronous schedule comes back as a synchronous one. Throws UsageError with
// `source`, line and cell for what is malformed, missing, twice, on the wrong rank or out of order.
Schedule parse_csv(const std::string& text, const std::string& source);

// The schedule of a file, as --schedule csv:FILE asks for it. Throws UsageError naming that.
Schedule read_csv(const std::string& path);

std::string to_csv(const Schedule& schedule);
std::string to_csv(const LoweredSchedule& schedule);  // with SEND and RECV cells

}  // namespace pipetrain::schedule
