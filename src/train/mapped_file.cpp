#include "train/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "pipetrain/error.h"

namespace pipetrain {

MappedFile::MappedFile(const std::string& path, const std::string& flag) : path_(path) {
  const auto fail = [&](const std::string& what) {
    throw UsageError(fmt::format("{} {}: {}", flag, path, what));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // no wait for a pipe
  if (file < 0) {
    fail(fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  struct stat status = {};
  const bool known = fstat(file, &status) == 0;
  const bool regular = known && S_ISREG(status.st_mode);
  if (regular && status.st_size > 0) {
    bytes_ = size_t(status.st_size);
    void* data = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    data_ = data == MAP_FAILED ? nullptr : static_cast<const std::byte*>(data);
  }
  const int map_error = errno;
  close(file);
  if (known && S_ISDIR(status.st_mode)) {
    fail("is a directory; a file is needed");
  }
  if (!regular) {
    fail("is not a regular file");
  }
  if (bytes_ == 0) {
    fail("is empty");
  }
  if (data_ == nullptr) {
    fail(fmt::format("cannot be mapped: {}", std::strerror(map_error)));
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), bytes_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

}  // namespace pipetrain
