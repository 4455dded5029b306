#include "pipetrain/train/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& flag, const std::string& path, const std::string& why) {
  throw UsageError(fmt::format("{} {}: {}", flag, path, why));
}

}  // namespace

void require_writable_directory(const std::string& path, const std::string& flag) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!fs::is_directory(path)) {
    refuse(flag, path,
           fmt::format("cannot be made a directory: {}",
                       error ? error.message() : "there is something else"));
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    refuse(flag, path, fmt::format("cannot be written: {}", std::strerror(errno)));
  }
}

void require_writable_file(const std::string& path, const std::string& flag) {
  if (fs::is_directory(path)) {
    refuse(flag, path, "is a directory; a file is needed");
  }
  const fs::path parent = fs::path(path).parent_path();
  if (access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) != 0) {
    refuse(flag, path, fmt::format("its directory cannot be written: {}", std::strerror(errno)));
  }
}

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
  require_writable_directory(path, "--run-dir");
  const std::string lock = path + "/.lock";
  lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) {
    refuse("--run-dir", path, fmt::format("cannot be written: {}", std::strerror(errno)));
  }
  // A file system without locks gives another error and is used without.
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(lock_);
    refuse("--run-dir", path, "another run is writing there; choose another directory");
  }
  std::error_code absent;
  if (fs::file_size(metrics_file(), absent) > 0 && !absent) {
    close(lock_);
    refuse("--run-dir", path,
           "already holds the metrics of a run; choose another directory, or remove it");
  }
}

RunDirectory::~RunDirectory() {
  close(lock_);
}

}  // namespace pipetrain
