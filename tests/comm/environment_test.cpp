#include "pipetrain/comm/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// Every test starts without the variables and leaves them as they were.
class Environment : public testing::Test {
 protected:
  void SetUp() override {
    for (auto& [name, value] : saved_) {
      const char* text = std::getenv(name.c_str());
      value = text == nullptr ? "" : text;
      unsetenv(name.c_str());
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : saved_) {
      if (value.empty()) {
        unsetenv(name.c_str());
      } else {
        setenv(name.c_str(), value.c_str(), 1);
      }
    }
  }

 private:
  std::map<std::string, std::string> saved_ = {{"CUDA_DEVICE_MAX_CONNECTIONS", ""},
                                               {"CUDA_MODULE_LOADING", ""},
                                               {"NCCL_LAUNCH_ORDER_IMPLICIT", ""},
                                               {"NCCL_HOSTID", ""},
                                               {"NCCL_MULTI_RANK_GPU_ENABLE", ""},
                                               {"NCCL_NET", ""},
                                               {"NCCL_SOCKET_IFNAME", ""},
                                               {"OMPI_COMM_WORLD_SIZE", ""},
                                               {"PMI_SIZE", ""},
                                               {"SLURM_STEP_NUM_TASKS", ""},
                                               {"SLURM_NTASKS", ""}};
};

TEST_F(Environment, IsSetForManyStreamsAndEagerLoading) {
  set_environment();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
}

TEST_F(Environment, OfTheUserIsKept) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", 1);
  set_environment();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "16");
}

// Fault 43: several ranks are started but MPI connects none of them: N jobs of one rank.
TEST_F(Environment, SeveralJobsOfOneRankAreRefused) {
  for (const char* name :
       {"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    setenv(name, "4", 1);
    EXPECT_EQ(ranks_started(), 4);
    EXPECT_THROW(refuse_jobs_of_one_rank(1), UsageError) << name;
    EXPECT_NO_THROW(refuse_jobs_of_one_rank(4)) << name;
    unsetenv(name);
  }
  EXPECT_EQ(ranks_started(), 0);
  EXPECT_NO_THROW(refuse_jobs_of_one_rank(1));
}

// Fault 43: ranks on one GPU, which NCCL takes for a mistake.
TEST_F(Environment, RanksThatShareGpusSeemToBeOnDifferentHosts) {
  let_ranks_share_gpus(3, true);
  const std::string third = std::getenv("NCCL_HOSTID");
  EXPECT_STREQ(std::getenv("NCCL_NET"), "Socket");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "lo");
  unsetenv("NCCL_HOSTID");
  unsetenv("NCCL_SOCKET_IFNAME");
  let_ranks_share_gpus(4, false);
  EXPECT_NE(std::getenv("NCCL_HOSTID"), third);
  EXPECT_EQ(std::getenv("NCCL_SOCKET_IFNAME"), nullptr);
}

TEST_F(Environment, HowTheUserLetsThemShareIsKept) {
  for (const char* name : {"NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"}) {
    setenv(name, "1", 1);
    let_ranks_share_gpus(0, true);
    EXPECT_EQ(std::getenv("NCCL_NET"), nullptr);
    unsetenv(name);
  }
}

TEST_F(Environment, AHostIsTheSameForAllThatRunsOnIt) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GE(host_identity().size(), 32u);
}

TEST_F(Environment, OneRankInsideALargerAllocationIsAllowed) {
  setenv("SLURM_NTASKS", "4", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  EXPECT_NO_THROW(refuse_jobs_of_one_rank(1));
}

}  // namespace
}  // namespace pipetrain
