#include "cli/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <system_error>
#include <thread>

namespace pipetrain::test {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

constexpr auto interval = std::chrono::milliseconds(10);
constexpr auto patience = std::chrono::seconds(60);

bool wait_until(const std::function<bool()>& condition, std::chrono::seconds longest) {
  const auto end = Clock::now() + longest;
  while (!condition()) {
    if (Clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(interval);
  }
  return true;
}

// All processes that `ancestor` has started, and that these have started.
std::vector<pid_t> descendants(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name.front())) == 0) {
      continue;
    }
    // pid (name) state parent ...; the name may hold anything.
    const std::string stat = read_file(entry.path() / "stat");
    const size_t end_of_name = stat.rfind(") ");
    if (end_of_name != std::string::npos) {
      children.emplace(std::atoi(stat.c_str() + end_of_name + 4), std::atoi(name.c_str()));
    }
  }
  std::vector<pid_t> found = {ancestor};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto child = first; child != last; ++child) {
      found.push_back(child->second);
    }
  }
  return found;
}

[[noreturn]] void become(const std::vector<std::string>& arguments, const std::string& directory,
                         const Environment& environment, const std::string& out,
                         const std::string& err) {
  setpgid(0, 0);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0666), STDOUT_FILENO);
  dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666), STDERR_FILENO);
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  if (chdir(directory.c_str()) == 0) {
    execvp(argv.front(), argv.data());
  }
  _exit(127);
}

}  // namespace

void send_signal(pid_t process, int number) {
  ASSERT_GT(process, 0) << "no process to send signal " << number << " to";
  kill(process, number);
}

Process::Process(const std::vector<std::string>& arguments, const std::string& directory,
                 const Environment& environment) {
  pid_ = fork();
  if (pid_ < 0) {
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  if (pid_ == 0) {
    become(arguments, directory, environment, output_.file("out"), output_.file("err"));
  }
}

Process::~Process() {
  kill_all();
}

bool Process::ended() {
  if (!reaped_) {
    reaped_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  }
  return reaped_;
}

// Ranks are in process groups of their own, so mpirun is asked to end them first.
void Process::kill_all() {
  if (ended()) {
    return;
  }
  const std::vector<pid_t> started = descendants(pid_);
  kill(pid_, SIGTERM);
  wait_until([&] { return ended(); }, std::chrono::seconds(5));
  if (!ended()) {
    for (const pid_t process : started) {
      kill(process, SIGKILL);
    }
    wait_until([&] { return ended(); }, std::chrono::seconds(5));
  }
}

pid_t Process::rank(int rank) {
  pid_t found = -1;
  const std::string variable = fmt::format("OMPI_COMM_WORLD_RANK={}", rank);
  const auto look = [&] {
    for (const pid_t child : descendants(pid_)) {
      const std::string environment = '\0' + read_file(fmt::format("/proc/{}/environ", int(child)));
      if (contains(environment, '\0' + variable + '\0')) {
        found = child;
      }
    }
    return found > 0 || ended();
  };
  wait_until(look, patience);
  EXPECT_GT(found, 0) << "rank " << rank << " was not there"
                      << (ended() ? " before the end: " : ": ") << read_file(output_.file("err"));
  return found;
}

void Process::wait_for_error_text(const std::string& text) {
  wait_until([&] { return contains(read_file(output_.file("err")), text) || ended(); }, patience);
  EXPECT_PRED2(contains, read_file(output_.file("err")), text) << (ended() ? "it has ended" : "");
}

Result Process::wait(std::chrono::seconds longest) {
  const bool done = wait_until([&] { return ended(); }, longest);
  Result result;
  result.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  kill_all();
  result.code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  result.out = read_file(output_.file("out"));
  result.err = read_file(output_.file("err"));
  EXPECT_TRUE(done) << "not ended after " << longest.count() << " s: " << result.err;
  return result;
}

std::vector<Result> run_all(const std::vector<std::vector<std::string>>& commands,
                            const std::string& directory) {
  constexpr size_t most_at_a_time = 6;
  std::vector<Result> results;
  std::vector<std::unique_ptr<Process>> running;
  for (size_t next = 0; results.size() < commands.size();) {
    for (; next < commands.size() && next - results.size() < most_at_a_time; ++next) {
      running.push_back(std::make_unique<Process>(commands[next], directory));
    }
    results.push_back(running[results.size()]->wait());
    running[results.size() - 1].reset();
  }
  return results;
}

}  // namespace pipetrain::test
