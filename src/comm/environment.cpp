#include "pipetrain/comm/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// The nearest launcher comes first: mpirun inside an allocation of four tasks may well start one
// rank. Open MPI, then MPICH and its relatives, then a step of srun, then Slurm's allocation.
constexpr std::array launcher_variables = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                           "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};

// The variable that counts, or nullptr.
const char* launcher_variable() {
  for (const char* name : launcher_variables) {
    if (std::getenv(name) != nullptr) {
      return name;
    }
  }
  return nullptr;
}

}  // namespace

void set_environment() {
  constexpr int keep = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", keep);
  setenv("CUDA_MODULE_LOADING", "EAGER", keep);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", keep);
}

int ranks_started() {
  const char* name = launcher_variable();
  return name == nullptr ? 0 : std::atoi(std::getenv(name));
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name); rank != nullptr) {
      return std::atoi(rank);
    }
  }
  return 0;
}

void refuse_jobs_of_one_rank(int mpi_ranks) {
  if (mpi_ranks == 1 && ranks_started() > 1) {
    throw UsageError(fmt::format(
        "{} ranks were started ({}), but MPI connects only one: the launcher does not fit the MPI "
        "library. Start with mpirun of the same MPI, or with srun --mpi=pmix",
        ranks_started(), launcher_variable()));
  }
}

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string identity;
  if (std::getline(file, identity)) {
    return identity;
  }
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

void let_ranks_share_gpus(int rank, bool one_host) {
  // The second is known from NCCL 2.30.3 on.
  if (std::getenv("NCCL_HOSTID") != nullptr ||
      std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr) {
    return;
  }
  constexpr int keep = 0;
  setenv("NCCL_HOSTID", fmt::format("pipetrain-{}-{}", host_identity(), rank).c_str(), keep);
  setenv("NCCL_NET", "Socket", keep);
  if (one_host) {
    setenv("NCCL_SOCKET_IFNAME", "lo", keep);
  }
}

}  // namespace pipetrain
