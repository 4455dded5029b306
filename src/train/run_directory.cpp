#include "pipetrain/train/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "pipetrain/error.h"
#include "train/output_file.h"

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

// Absolute, without links as far as it exists, without a slash at its end; empty if links go in a
// circle.
fs::path resolved(const std::string& path) {
  std::error_code problem;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path), problem);
  return whole.has_filename() || whole == whole.root_path() ? whole : whole.parent_path();
}

// `given` is what messages name: the directory, or the file that is first written as `name` there.
void require_writable(const fs::path& directory, const fs::path& name, const std::string& given,
                      const std::string& flag) {
  fs::path existing = fs::absolute(directory);
  const fs::path path = existing / name;
  status_of(path, given, flag);
  std::error_code ignored;
  while (!fs::exists(status_of(existing, given, flag)) && !fs::is_symlink(existing, ignored)) {
    existing = existing.parent_path();
  }
  const long longest = pathconf(existing.c_str(), _PC_NAME_MAX);
  for (const fs::path& part : path.lexically_relative(existing)) {
    if (longest > 0 && part.native().size() > size_t(longest)) {
      refuse(flag, given, std::strerror(ENAMETOOLONG));
    }
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
  require_writable(path, "", path, flag);
}

void require_writable_file(const std::string& path, const std::string& flag) {
  const fs::file_status status = status_of(path, path, flag);
  if (fs::is_directory(status)) {
    refuse(flag, path, "is a directory; a file is needed");
  }
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    refuse(flag, path, "is a device or the like; a file is needed");
  }
  const fs::path temporary = OutputFile::temporary_name(fs::absolute(path));
  require_writable(temporary.parent_path(), temporary.filename(), path, flag);
}

bool same_file(const std::string& x, const std::string& y) {
  std::error_code problem;
  return fs::equivalent(x, y, problem) || (lies_within(x, y) && lies_within(y, x));
}

bool lies_within(const std::string& path, const std::string& directory) {
  const fs::path inner = resolved(path);
  const fs::path outer = resolved(directory);
  return !outer.empty() &&
         std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
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
  const std::string lock_file = path + lock;
  lock_ = open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
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
