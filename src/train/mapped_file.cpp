#include "train/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pipetrain/error.h"
#include "pipetrain/progress.h"
#include "train/mapping_guard.h"

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
  guard_ =
      guard_mapping(bytes(), fmt::format("{} {}: cannot be read: it was truncated after it was "
                                         "opened, or its disk failed",
                                         flag, path));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    unguard_mapping(guard_);
    munmap(const_cast<std::byte*>(data_), bytes_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      guard_(std::exchange(other.guard_, nullptr)) {}

uint64_t MappedFile::checksum(size_t blocks) const {
  constexpr size_t block = 4096;
  constexpr uint64_t prime = 0x100000001b3;  // FNV-1a's, over words of 8 bytes
  uint64_t hash = 0xcbf29ce484222325 ^ bytes_;
  const auto add = [&](size_t first, size_t count) {
    for (size_t i = first; i < first + count; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, data_ + i, std::min(sizeof(word), first + count - i));
      hash = (hash ^ word) * prime;
      hash ^= hash >> 32;
    }
    report_progress();
  };
  const size_t all = (bytes_ + block - 1) / block;
  const size_t chosen = std::min(all, blocks);
  for (size_t i = 0; i < chosen; ++i) {
    const size_t number =
        chosen == all ? i : size_t(double(i) * double(all - 1) / double(chosen - 1));
    add(number * block, std::min(block, bytes_ - number * block));
  }
  return hash;
}

}  // namespace pipetrain
