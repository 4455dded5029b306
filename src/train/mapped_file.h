#pragma once

#include <cstddef>
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

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace pipetrain
  class GuardedMapping* guard_ = nullptr;
