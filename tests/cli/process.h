#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "train/temporary.h"

namespace pipetrain::test {

// How a program has ended.
struct Result {
  int code = -1;  // exit code, or 128 + the signal that ended it, as a shell says it
  std::string out;
  std::string err;
  double seconds = 0;
};

using Environment = std::map<std::string, std::string>;

// Sends a signal to that process alone; a failure of the test where there is none, as after a rank
// that did not start (kill(2) takes -1 for all processes of the machine).
void send_signal(pid_t process, int number);

// A program that runs beside the test. When the test is done with it, it and the processes that it
// has started are gone.
class Process {
 public:
  // Starts `arguments` in `directory`; `environment` is added to the test's own.
  Process(const std::vector<std::string>& arguments, const std::string& directory,
          const Environment& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // The process of that rank, where this is mpirun or has started it. Waits until it is there; a
  // failure of the test and -1 if it does not come or all has ended.
  pid_t rank(int rank);
  // Waits until standard error holds `text`; a failure of the test if it does not come, at once
  // where the program has ended.
  void wait_for_error_text(const std::string& text);
  // A program that has not ended by then is killed, and the test fails.
  Result wait(std::chrono::seconds longest = std::chrono::seconds(90));

 private:
  bool ended();
  void kill_all();

  TemporaryDirectory output_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
};

// Runs all commands, a few at a time, in `directory`; results in their order.
std::vector<Result> run_all(const std::vector<std::vector<std::string>>& commands,
                            const std::string& directory);

}  // namespace pipetrain::test
