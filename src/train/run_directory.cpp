#include "pipetrain/train/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& flag, const std::string& path, const std::string& why) {
  throw UsageError(fmt::format("{} {}: {}", flag, path, why));
}

fs::file_status status_of(const fs::path& path, const std::string& given, const std::string& flag) {
  std::error_code problem;
  const fs::file_status status = fs::status(path, problem);
  if (status.type() == fs::file_type::none) {  // a name too long, links in a circle
    refuse(flag, given, problem.message());
  }
  return status;
}

// `given` is what messages name: the directory, or a file in it.
void require_writable(const fs::path& directory, const std::string& given,
                      const std::string& flag) {
  fs::path existing = fs::absolute(directory);
  std::error_code ignored;
  while (!fs::exists(status_of(existing, given, flag)) && !fs::is_symlink(existing, ignored)) {
    existing = existing.parent_path();
  }
  if (!fs::is_directory(existing, ignored)) {
    refuse(flag, given, fmt::format("{} is no directory", existing.string()));
  }
  // The only sure answer, on network and read-only file systems too.
  std::string probe = existing / ".pipetrain-XXXXXX";
  if (mkdtemp(probe.data()) == nullptr) {
    refuse(flag, given,
           fmt::format("{} cannot be written: {}", existing.string(), std::strerror(errno)));
  }
  rmdir(probe.c_str());
}

}  // namespace

void require_writable_directory(const std::string& path, const std::string& flag) {
  require_writable(path, path, flag);
}

void require_writable_file(const std::string& path, const std::string& flag) {
  const fs::file_status status = status_of(path, path, flag);
  if (fs::is_directory(status)) {
    refuse(flag, path, "is a directory; a file is needed");
  }
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    refuse(flag, path, "is a device or the like; a file is needed");
  }
  require_writable(fs::absolute(path).parent_path(), path, flag);
}

bool same_file(const std::string& x, const std::string& y) {
  std::error_code problem;
  if (fs::equivalent(x, y, problem)) {
    return true;
  }
  const fs::path canonical_x = fs::weakly_canonical(fs::absolute(x), problem);
  return !problem && canonical_x == fs::weakly_canonical(fs::absolute(y), problem) && !problem;
}

void make_directory(const std::string& path, const std::string& flag) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    refuse(flag, path, fmt::format("cannot be created: {}", error.message()));
  }
}

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
  require_writable_directory(path, "--run-dir");
  require_writable_file(log_file(), "--run-dir");
  if (const fs::file_status status = status_of(metrics_file(), metrics_file(), "--run-dir");
      fs::is_directory(status) || fs::is_fifo(status) || fs::is_socket(status)) {
    refuse("--run-dir", metrics_file(), "is no file");
  }
  make_directory(path, "--run-dir");
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
