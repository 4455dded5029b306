#include "pipetrain/comm/agree.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// "<exit code, one digit> <message>" of the first rank that failed; empty if none did.
std::string first_failure(const std::vector<std::vector<std::byte>>& outcomes) {
  std::string first;
  size_t failed = 0;
  int rank = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].empty()) {
      if (failed == 0) {
        first = text_of(outcomes[i]);
        rank = int(i);
      }
      ++failed;
    }
  }
  if (failed == 0 || failed == outcomes.size()) {
    return first;
  }
  const size_t space = first.find(' ');
  return fmt::format("{} rank {}: {}", first.substr(0, space), rank, first.substr(space + 1));
}

}  // namespace

void agree(Control& control, const std::function<void()>& work) {
  std::string outcome;
  try {
    work();
  } catch (const Error& error) {
    outcome = fmt::format("{} {}", int(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    outcome = fmt::format("{} {}", int(ExitCode::does_not_fit), host_memory_exhausted);
  } catch (const std::exception& error) {
    outcome = fmt::format("{} {}", int(ExitCode::other), error.what());
  }
  const auto outcomes = control.gather(bytes_of(outcome), 0);
  const std::string failure =
      control.broadcast(control.rank() == 0 ? first_failure(outcomes) : std::string(), 0);
  if (!failure.empty()) {
    if (failure.size() < 2 || failure[0] < '0' || failure[0] > '9' || failure[1] != ' ') {
      throw UsageError(
          "the ranks do not all do the same; start all with the same program, command, flags and "
          "files");
    }
    throw AgreedError(ExitCode(failure[0] - '0'), failure.substr(2));
  }
}

}  // namespace pipetrain
