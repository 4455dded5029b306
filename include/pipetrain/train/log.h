#pragma once

#include <memory>
#include <string>

namespace pipetrain {

// Lines for people: to standard error and, with the time of day, to a file.
class Log {
 public:
  enum class Terminal { off, on };

  // An empty `file`: none. An existing file is continued. Throws UsageError naming --run-dir when
  // it cannot be opened.
  explicit Log(const std::string& file = "", Terminal terminal = Terminal::on);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void info(const std::string& line);
  void warning(const std::string& line);
  // Why the run ends, to the file alone: the program itself prints it.
  void last_line(const std::string& line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipetrain
