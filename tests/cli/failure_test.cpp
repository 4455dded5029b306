#ifndef PIPETRAIN_SANITIZE  // MPI's own reports would drown a sanitizer's

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/program.h"

// Fault 11 (a peer exits, is killed or stops, and the others wait for ever), and signals.

namespace pipetrain::test {
namespace {

#ifdef PIPETRAIN_CUDA
constexpr double timeout = 60;  // --timeout of all runs here; to make a context takes seconds
#else
constexpr double timeout = 3;
#endif
// How much longer the end may take: mpirun waits a second before it kills, and the machine may be
// busy.
constexpr double slack = 20;

Arguments endless_training(const std::string& more = "") {
  return pipetrain(words(fmt::format("train {} --data text --steps 1000000 --timeout {} {}",
                                     tiny_model, timeout, more)));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A job of four ranks that has done a few steps.
class Job {
 public:
  explicit Job(const std::string& more = "", int ranks = 4) {
    write_text(directory_, "text", 4000);
    process_.emplace(on_ranks(ranks, endless_training("--run-dir run " + more)), directory_.path(),
                     mpi_environment());
    process_->wait_for_error_text("/1000000  loss");
  }

  std::string path(const std::string& name) const { return directory_.file(name); }
  std::string directory() const { return directory_.path(); }
  Process& process() { return *process_; }
  void send(int rank, int number) { send_signal(process_->rank(rank), number); }
  std::string log() const { return read_file(path("run/log.txt")); }

 private:
  TemporaryDirectory directory_;
  std::optional<Process> process_;
};

// Whether the process, which is no child of the test, ends soon.
bool goes_away(pid_t process) {
  const auto start = std::chrono::steady_clock::now();
  while (seconds_since(start) < slack) {
    const std::string stat = read_file(fmt::format("/proc/{}/stat", int(process)));
    if (stat.empty() || contains(stat, ") Z ")) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool any_holds(const std::vector<std::string>& lines, const std::vector<std::string>& parts) {
  for (const std::string& line : lines) {
    bool all = true;
    for (const std::string& part : parts) {
      all = all && contains(line, part);
    }
    if (all) {
      return true;
    }
  }
  return false;
}

// Fault 11: a peer stops and the others wait for ever.
TEST(Failure, AStoppedRankEndsTheJobAndIsNamed) {
  Job job;
  const auto start = std::chrono::steady_clock::now();
  job.send(2, SIGSTOP);
  const Result result = job.process().wait();
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_LT(seconds_since(start), timeout + slack);
  const std::vector<std::string> lines = error_lines(result);
  EXPECT_TRUE(any_holds(lines, {fmt::format("no progress for {} s (--timeout)", timeout), "rank ",
                                "stage ", "micro-batch ", "waits for "}))
      << result.err;
  EXPECT_TRUE(any_holds(lines, {"waits for rank 2 to "}) ||
              any_holds(lines, {"waits for the norms and losses of all ranks"}))
      << result.err;
  // Rank 0 either found the deadline passed or was ended by mpirun for another rank that had.
  EXPECT_TRUE(contains(job.log(), fmt::format("error no progress for {} s (--timeout)", timeout)) ||
              contains(job.log(), "error SIGTERM: ended"))
      << job.log();
}

TEST(Failure, ARankThatStopsBeforeItHasStartedEndsTheJob) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const Arguments stopping = {
      "bash", "-c", "[ $OMPI_COMM_WORLD_RANK = 2 ] && kill -STOP $$; exec \"$@\"", "bash"};
  const Result result = Process(on_ranks(4, stopping + endless_training("--run-dir run")),
                                directory.path(), mpi_environment())
                            .wait();
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_LT(result.seconds, timeout + slack);
  EXPECT_TRUE(any_holds(error_lines(result), {"--timeout", "waits for all ranks to start"}))
      << result.err;
}

TEST(Failure, AKilledRankEndsTheJobAtOnce) {
  Job job;
  const auto start = std::chrono::steady_clock::now();
  job.send(1, SIGKILL);
  const Result result = job.process().wait();
  EXPECT_EQ(result.code, 137) << result.err;
  EXPECT_LT(seconds_since(start), slack);
  EXPECT_FALSE(contains(result.err, "--timeout")) << result.err;
  EXPECT_PRED2(contains, job.log(), "error SIGTERM: ended");
}

// What the launch scripts use calls a killed rank a lost one.
TEST(Failure, RunRanksReturns4ForAKilledRank) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const std::string launch = std::string(PIPETRAIN_TEST_DATA) + "/../../launch/common.sh";
  Environment environment = mpi_environment();
  environment["OMPI_MCA_rmaps_base_oversubscribe"] = "1";
  Process process(
      Arguments{"bash", "-c", "source " + launch + "; run_ranks 2 \"$@\"; exit $?", "bash"} +
          endless_training(),
      directory.path(), environment);
  process.wait_for_error_text("/1000000  loss");
  send_signal(process.rank(1), SIGKILL);
  EXPECT_EQ(process.wait().code, 4);
}

TEST(Failure, SigtermEndsARankAndTheJobAndSaysWhatWasNotFinished) {
  Job job;
  job.send(3, SIGTERM);
  const Result result = job.process().wait();
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_TRUE(any_holds(error_lines(result), {"SIGTERM: ended", "not finished: ", "rank 3: "}))
      << result.err;
}

TEST(Failure, SigintEndsARankLikeSigterm) {
  Job job("", 2);
  job.send(1, SIGINT);
  const Result result = job.process().wait();
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_TRUE(any_holds(error_lines(result), {"SIGINT: ended", "not finished: "})) << result.err;
}

// mpirun's own code is then 1; the ranks leave with 4.
TEST(Failure, SigtermToMpirunEndsAllRanks) {
  Job job("", 2);
  const pid_t rank = job.process().rank(1);
  send_signal(job.process().pid(), SIGTERM);
  const Result result = job.process().wait();
  EXPECT_NE(result.code, 0);
  EXPECT_TRUE(any_holds(error_lines(result), {"SIGTERM: ended", "not finished: "})) << result.err;
  EXPECT_TRUE(goes_away(rank));
}

TEST(Failure, Sigusr1StopsAfterTheStepAndWritesTheResults) {
  Job job("--export model --trace trace.json --learning-rate 1e-2", 2);
  send_signal(job.process().pid(), SIGUSR1);
  const Result result = job.process().wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(nlohmann::json::parse(read_file(job.path("trace.json"))).contains("traceEvents"));
  const std::vector<nlohmann::json> steps = read_metrics(job.path("run"));
  EXPECT_PRED2(contains, job.log(),
               fmt::format("SIGUSR1: stopped after step {} of 1000000", steps.size()));
  EXPECT_PRED2(contains, result.out, fmt::format("stopped:   by SIGUSR1, {} ", steps.size()));
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["step"], i + 1);
  }
  const Result next =
      run_pipetrain("train --init model --sequence-length 8 --data text --steps 1 --run-dir next",
                    job.directory());
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_LT(losses(job.path("next")).front(), losses(job.path("run")).front());
}

TEST(Failure, ASecondRunInTheSameDirectoryIsRefusedAndTheFirstGoesOn) {
  Job job("", 2);
  const Result second = run_pipetrain(
      "train --data text --steps 1 --run-dir run --export model " + tiny_model, job.directory());
  expect_refused(second, 2, {"--run-dir run", "another run"});
  EXPECT_FALSE(std::filesystem::exists(job.path("model")));
  send_signal(job.process().pid(), SIGUSR1);
  const Result first = job.process().wait();
  EXPECT_EQ(first.code, 0) << first.err;
  const std::vector<nlohmann::json> steps = read_metrics(job.path("run"));
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front()["step"], 1);
  EXPECT_EQ(steps.back()["step"], steps.size());
}

// What was learned so far is not lost with the disk of the metrics.
TEST(Failure, AFullDiskEndsTheJobWithItsReasonAndAnExport) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  std::filesystem::create_directory(directory.file("run"));
  std::filesystem::create_symlink("/dev/full", directory.file("run/metrics.jsonl"));
  const Result result = Process(on_ranks(2, endless_training("--run-dir run --export model")),
                                directory.path(), mpi_environment())
                            .wait();
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(any_holds(error_lines(result), {"metrics.jsonl", "disk full", "from step 1 on"}))
      << result.err;
  EXPECT_PRED2(contains, read_file(directory.file("run/log.txt")), "error ");
  EXPECT_TRUE(std::filesystem::exists(directory.file("model/model.safetensors")));
}

// Two of four ranks find it, in the middle of training.
TEST(Failure, DataThatChangeUnderTheRunEndTheJobWithTheReason) {
  const TemporaryDirectory directory;
  const std::vector<int> tokens(2000, 1);
  write_file(directory.file("data"), shard(tokens));
  Process process(on_ranks(4, pipetrain(words(fmt::format(
                                  "train {} --vocab-size 300 --data data --run-dir run --steps "
                                  "1000000 --timeout {}",
                                  tiny_model, timeout)))),
                  directory.path(), mpi_environment());
  process.wait_for_error_text("/1000000  loss");
  {
    std::fstream file(directory.file("data"), std::ios::in | std::ios::out | std::ios::binary);
    file << shard(std::vector<int>(tokens.size(), 301));
  }
  const Result result = process.wait();
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_TRUE(any_holds(error_lines(result), {"--data", "token 301", "vocabulary of 300"}))
      << result.err;
  EXPECT_PRED2(contains, read_file(directory.file("run/log.txt")), "error --data");
}

// Sends `number` to a rank of the job and requires that all ranks end. One that is stopped after
// the others have left with all work done may stay: nobody waits for it but mpirun. mpirun itself
// may hang, or crash (139), when a rank dies while it connects to it; its exit code counts when it
// ends.
void expect_end_of_job(const std::string& flags, int number, int delay,
                       const std::vector<int>& codes) {
  SCOPED_TRACE(fmt::format("signal {} after {} ms", number, delay));
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  Process process(on_ranks(4, pipetrain(words(fmt::format("train {} --data text --timeout {} {}",
                                                          tiny_model, timeout, flags)))),
                  directory.path(), mpi_environment());
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(process.rank(rank));
  }
  const size_t target = size_t(delay / 50 % 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(delay));
  send_signal(ranks[target], number);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(rank == target || goes_away(ranks[rank])) << "rank " << rank;
  }
  EXPECT_TRUE(goes_away(ranks[target]) ||
              std::filesystem::exists(directory.file("model/model.safetensors")));
  if (goes_away(process.pid())) {
    const Result result = process.wait();
    EXPECT_NE(std::find(codes.begin(), codes.end(), result.code), codes.end())
        << result.code << ": " << result.err;
  }
}

TEST(SweepFailure, ASignalAtAnyMomentOfTheStartEndsTheJob) {
  for (int delay = 0; delay <= 1000; delay += 50) {
    expect_end_of_job("--steps 1000000 --run-dir run", SIGSTOP, delay, {4, 139});
    expect_end_of_job("--steps 1000000 --run-dir run", SIGTERM, delay, {4, 139, 143});
    expect_end_of_job("--steps 1000000 --run-dir run", SIGKILL, delay, {137, 139});
  }
}

TEST(SweepFailure, AStoppedRankNeverHangsAShortRun) {
  for (int delay = 0; delay <= 1500; delay += 50) {
    expect_end_of_job("--steps 40 --export model --trace trace --run-dir run", SIGSTOP, delay,
                      {0, 4, 139});
  }
}

}  // namespace
}  // namespace pipetrain::test

#endif  // PIPETRAIN_SANITIZE
