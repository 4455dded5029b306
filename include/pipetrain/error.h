#pragma once

#include <stdexcept>
#include <string>

namespace pipetrain {

// Exit codes of the program; scripts rely on them.
enum class ExitCode { done = 0, other = 1, usage = 2, does_not_fit = 3, lost = 4 };

// Base of all errors that the program reports in one line.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Wrong usage or input. The message says what was given, what is allowed, and names the flag.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ExitCode::usage, message) {}
};

// Does not fit into memory, or a limit that no schedule meets. The message holds the budget.
class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(const std::string& message) : Error(ExitCode::does_not_fit, message) {}
};

// A peer was lost or a deadline passed.
class PeerLost : public Error {
 public:
  explicit PeerLost(const std::string& message) : Error(ExitCode::lost, message) {}
};

// A broken promise inside the program (a tag mismatch, a pool taken twice): a defect, never the
// user's doing.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::other, message) {}
};

}  // namespace pipetrain
