#include "train/mapping_guard.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "pipetrain/error.h"

namespace pipetrain {

// Never freed, so that the handler may walk the list at any time.
class GuardedMapping {
 public:
  std::atomic<bool> guarded{true};
  std::span<const std::byte> bytes;
  std::string line;
  GuardedMapping* next = nullptr;
};

namespace {

std::atomic<GuardedMapping*> newest{nullptr};
struct sigaction previous_action = {};

// Only what a signal handler may do.
void handle_bus_error(int, siginfo_t* info, void*) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const GuardedMapping* mapping = newest; mapping != nullptr; mapping = mapping->next) {
    const std::byte* begin = mapping->bytes.data();
    if (mapping->guarded && address >= begin && address < begin + mapping->bytes.size()) {
      [[maybe_unused]] const ssize_t written =
          write(STDERR_FILENO, mapping->line.data(), mapping->line.size());
      _exit(int(ExitCode::other));
    }
  }
  sigaction(SIGBUS, &previous_action, nullptr);  // the fault comes again
}

}  // namespace

GuardedMapping* guard_mapping(std::span<const std::byte> bytes, const std::string& message) {
  static std::once_flag installed;
  std::call_once(installed, [] {
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = handle_bus_error;
    sigaction(SIGBUS, &action, &previous_action);
  });
  auto* mapping = new GuardedMapping;
  mapping->bytes = bytes;
  mapping->line = "pipetrain: " + message + "\n";
  mapping->next = newest;
  while (!newest.compare_exchange_weak(mapping->next, mapping)) {
  }
  return mapping;
}

void unguard_mapping(GuardedMapping* mapping) {
  mapping->guarded = false;
}

}  // namespace pipetrain
