#include "nccl_ranks.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

extern char** environ;

namespace pipetrain::test {
namespace {

constexpr auto rank_variable = "PIPETRAIN_TEST_RANK";
constexpr auto directory_variable = "PIPETRAIN_TEST_DIRECTORY";
constexpr auto longest = std::chrono::seconds(120);

// Rank 0 writes the id, the others wait for it.
ncclUniqueId exchange_id(int rank, const std::string& directory) {
  const std::string path = directory + "/id", unfinished = directory + "/id.part";
  ncclUniqueId id{};
  if (rank == 0) {
    ok(ncclGetUniqueId(&id));
    std::FILE* file = std::fopen(unfinished.c_str(), "wb");
    EXPECT_EQ(std::fwrite(&id, sizeof id, 1, file), 1u);
    std::fclose(file);
    EXPECT_EQ(std::rename(unfinished.c_str(), path.c_str()), 0);
    return id;
  }
  const auto end = std::chrono::steady_clock::now() + longest;
  std::FILE* file = nullptr;
  while ((file = std::fopen(path.c_str(), "rb")) == nullptr) {
    if (std::chrono::steady_clock::now() > end) {
      std::fprintf(stderr, "rank %d: no id from rank 0\n", rank);
      std::_Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(std::fread(&id, sizeof id, 1, file), 1u);
  std::fclose(file);
  return id;
}

std::string output_file(const std::string& directory, int rank) {
  return directory + "/output-" + std::to_string(rank);
}

pid_t start_rank(int rank, const std::string& directory, bool share_device) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.push_back(*entry);
  }
  environment.push_back(std::string(rank_variable) + "=" + std::to_string(rank));
  environment.push_back(std::string(directory_variable) + "=" + directory);
  if (share_device) {
    environment.push_back("NCCL_HOSTID=pipetrain-test-" + std::to_string(rank));
    environment.push_back("NCCL_NET=Socket");
    environment.push_back("NCCL_SOCKET_IFNAME=lo");
  }
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  std::vector<std::string> arguments = {
      "/proc/self/exe",
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name(),
      "--gtest_brief=1"};
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) {
      result.push_back(text.data());
    }
    result.push_back(nullptr);
    return result;
  };
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output_file(directory, rank).c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                                pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << std::strerror(error);
  return pid;
}

}  // namespace

void in_processes(int ranks, const std::function<void(Rank&)>& body) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "there is no device";
  }
  if (const char* rank_text = std::getenv(rank_variable)) {
    const int number = std::atoi(rank_text);
    // A rank whose test hangs ends, and with it the test.
    alarm(unsigned(longest.count()));
    const ncclUniqueId id = exchange_id(number, std::getenv(directory_variable));
    Rank rank(number, ranks, number % devices, id);
    body(rank);
    return;
  }
  char directory[] = "/tmp/pipetrain-nccl-test-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(start_rank(rank, directory, devices < ranks));
  }
  for (int left = ranks; left > 0; --left) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    const auto found = std::find(children.begin(), children.end(), ended);
    ASSERT_NE(found, children.end());
    *found = -1;
    const int rank = int(found - children.begin());
    const std::string output = output_file(directory, rank);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ADD_FAILURE() << "rank " << rank << ": status " << status << "\n"
                    << (std::stringstream() << std::ifstream(output).rdbuf()).str();
      // The others may wait for it for ever.
      std::this_thread::sleep_for(std::chrono::seconds(1));
      for (const pid_t child : children) {
        if (child > 0) {
          kill(child, SIGKILL);
        }
      }
    }
    std::remove(output.c_str());
  }
  std::remove((std::string(directory) + "/id").c_str());
  rmdir(directory);
}

void in_threads(int ranks, const std::function<void(Rank&)>& body) {
  alarm(unsigned(longest.count()));
  ncclUniqueId id{};
  ok(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int number = 0; number < ranks; ++number) {
    threads.emplace_back([&, number] {
      Rank rank(number, ranks, number, id);
      body(rank);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  alarm(0);
}

}  // namespace pipetrain::test
