#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pipetrain {

// A file mapped read-only: only what is touched is read. A read of what is no longer there ends the
// process with one line and exit code 1.
class MappedFile {
 public:
  // Throws UsageError that starts with `flag` and the path: missing, a directory, unreadable,
  // empty.
  MappedFile(const std::string& path, const std::string& flag);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, bytes_}; }
  const std::string& path() const { return path_; }
  // Of the length and the content: the whole of it, or of a file of more than `blocks` blocks of
  // 4 KiB as many, evenly spread from the first to the last. At least 2.
  uint64_t checksum(size_t blocks) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  class GuardedMapping* guard_ = nullptr;
};

}  // namespace pipetrain
