#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pipetrain {

// A file that appears under its name only when it is complete: written beside it under a temporary
// name, synchronised, then renamed. Throws Error with the path and the system's reason.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  // What it is called until it is complete. Of its own for every process, so that runs which write
  // the same file do not disturb each other.
  static std::string temporary_name(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> data);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void complete();  // on disk; what is left of finish() takes no more room there
  void finish();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  int file_ = -1;
};

}  // namespace pipetrain
