#include "pipetrain/comm/grid.h"

#include <fmt/format.h>

#include "pipetrain/error.h"

namespace pipetrain {

Grid make_grid(int ranks, int rank, int data_parallel) {
  if (data_parallel < 1 || ranks % data_parallel != 0) {
    throw UsageError(
        fmt::format("--data-parallel {} with {} ranks: it must be at least 1 and divide the "
                    "number of ranks; change it or the number that mpirun -n starts",
                    data_parallel, ranks));
  }
  return {.pipeline = ranks / data_parallel, .replicas = data_parallel, .rank = rank};
}

}  // namespace pipetrain
