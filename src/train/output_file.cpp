#include "train/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "pipetrain/error.h"

namespace pipetrain {

std::string OutputFile::temporary_name(const std::string& path) {
  return fmt::format("{}.partial-{}", path, getpid());
}

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(temporary_name(path)) {
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) {
    fail("create");
  }
}

OutputFile::~OutputFile() {
  if (file_ >= 0) {
    close(file_);
    unlink(temporary_.c_str());
  }
}

void OutputFile::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t written = ::write(file_, data.data(), data.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail("write");
    }
    data = data.subspan(size_t(written));
  }
}

void OutputFile::complete() {
  if (fsync(file_) != 0) {
    fail("write");
  }
}

void OutputFile::finish() {
  complete();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("rename");
  }
  close(file_);
  file_ = -1;
  // The new name is safe only once the directory is on disk too.
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int directory = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_CLOEXEC);
  if (directory >= 0) {
    fsync(directory);
    close(directory);
  }
}

void OutputFile::fail(const char* what) const {
  throw Error(ExitCode::other, fmt::format("cannot {} {}: {}", what, path_, std::strerror(errno)));
}

}  // namespace pipetrain
