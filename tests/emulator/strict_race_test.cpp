#if defined(PIPETRAIN_HOST) && defined(__SANITIZE_THREAD__)

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/emulator/strict_fixture.h"

// Under ThreadSanitizer: what CUDA does not order is reported, every time, even when the operations
// happen to run in the right order and far apart.
namespace pipetrain::test {
namespace {

using StrictRace = Strict;

constexpr size_t bytes = 4096;

struct Outcome {
  int exit_code;
  bool race;
};

// Runs a disabled test of this program in a process of its own.
Outcome run_alone(const std::string& test) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  path[length] = '\0';
  const std::string command = "TSAN_OPTIONS=exitcode=66:atexit_sleep_ms=0 '" + std::string(path) +
                              "' --gtest_also_run_disabled_tests --gtest_filter=" + test + " 2>&1";
  FILE* output = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t read = fread(part.data(), 1, part.size(), output)) {
    text.append(part.data(), read);
  }
  const int status = pclose(output);
  return {WEXITSTATUS(status), text.find("WARNING: ThreadSanitizer: data race") != text.npos};
}

// Writes on one stream and reads on another, in an order that the host only lets happen: it sleeps
// between the two submissions and orders nothing.
class TwoStreams : public Strict {
 protected:
  void run(bool wait, bool write_behind_the_record) {
    cudaStream_t writer = new_stream();
    cudaStream_t reader = new_stream();
    cudaEvent_t written = new_event();
    char* buffer = device_memory<char>(bytes);
    char* host = pinned_memory<char>(bytes);
    ok(cudaMemsetAsync(buffer, 1, bytes, writer));
    ok(cudaEventRecord(written, writer));
    if (write_behind_the_record) {
      ok(cudaMemsetAsync(buffer, 2, bytes, writer));
    }
    usleep(50000);
    ok(cudaEventRecord(new_event(), writer));
    if (wait) {
      ok(cudaStreamWaitEvent(reader, written));
    }
    ok(cudaMemcpyAsync(host, buffer, bytes, cudaMemcpyDeviceToHost, reader));
    ok(cudaDeviceSynchronize());
  }
};
using StrictRaceChild = TwoStreams;

TEST_F(StrictRaceChild, DISABLED_WithoutTheWait) {
  run(false, false);
}
TEST_F(StrictRaceChild, DISABLED_WithTheWait) {
  run(true, false);
}
TEST_F(StrictRaceChild, DISABLED_WritingBehindTheRecord) {
  run(true, true);
}

TEST_F(StrictRaceChild, DISABLED_CopyingToTheHostWithoutSynchronising) {
  cudaStream_t stream = new_stream();
  char* buffer = device_memory<char>(bytes);
  char host[bytes];
  ok(cudaMemsetAsync(buffer, 1, bytes, stream));
  usleep(50000);
  ok(cudaMemcpy(host, buffer, bytes, cudaMemcpyDeviceToHost));
}

TEST_F(StrictRaceChild, DISABLED_CopyingToTheHostAfterAnEvent) {
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  char* buffer = device_memory<char>(bytes);
  char host[bytes];
  ok(cudaMemsetAsync(buffer, 1, bytes, stream));
  ok(cudaEventRecord(event, stream));
  while (cudaEventQuery(event) == cudaErrorNotReady) {
    usleep(100);
  }
  cudaGetLastError();
  ok(cudaMemcpy(host, buffer, bytes, cudaMemcpyDeviceToHost));
}

TEST_F(StrictRace, AMissingWaitIsReportedEveryTime) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Outcome outcome = run_alone("StrictRaceChild.DISABLED_WithoutTheWait");
    EXPECT_EQ(outcome.exit_code, 66);
    EXPECT_TRUE(outcome.race);
  }
}

TEST_F(StrictRace, WhatFollowsTheRecordIsNotOrderedByTheWait) {
  const Outcome outcome = run_alone("StrictRaceChild.DISABLED_WritingBehindTheRecord");
  EXPECT_EQ(outcome.exit_code, 66);
  EXPECT_TRUE(outcome.race);
}

TEST_F(StrictRace, ACopyWithoutSynchronisationIsReported) {
  const Outcome outcome =
      run_alone("StrictRaceChild.DISABLED_CopyingToTheHostWithoutSynchronising");
  EXPECT_EQ(outcome.exit_code, 66);
  EXPECT_TRUE(outcome.race);
}

TEST_F(StrictRace, AMissingWarpSynchronisationIsReported) {
  const Outcome outcome = run_alone("StrictKernel.DISABLED_AWarpThatIsNotSynchronised");
  EXPECT_EQ(outcome.exit_code, 66);
  EXPECT_TRUE(outcome.race);
}

TEST_F(StrictRace, CorrectProgramsAreNotReported) {
  for (const char* test : {"StrictRaceChild.DISABLED_WithTheWait",
                           "StrictRaceChild.DISABLED_CopyingToTheHostAfterAnEvent"}) {
    const Outcome outcome = run_alone(test);
    EXPECT_EQ(outcome.exit_code, 0) << test;
    EXPECT_FALSE(outcome.race) << test;
  }
}

}  // namespace
}  // namespace pipetrain::test

#endif
