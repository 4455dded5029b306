#pragma once

#include <string>
#include <vector>

#include "pipetrain/schedule/schedule.h"
#include "schedule/csv_cells.h"

namespace pipetrain::schedule {

// The checks of what lower() puts in again. Both take the cells of every rank with the kinds of
// computations settled, in a legal order, and throw UsageError with line and cell.

// A file without SEND and RECV cells passes. Else every message between two ranks has both, SEND
// behind what makes it and RECV before what uses it; messages of one direction between two ranks
// arrive in the order in which they are sent; and the lists do not deadlock with rendezvous sends.
void check_transfers(const std::vector<std::vector<CsvCell>>& rows, const Placement& placement,
                     const std::string& source);

// REDUCE_GRAD and OPTIMIZER_STEP, where there are any: behind the gradients that they need, on
// every rank. Returns when the weights change as the cells say.
Update check_updates(const std::vector<std::vector<CsvCell>>& rows, const Schedule& schedule,
                     const std::string& source);

}  // namespace pipetrain::schedule
