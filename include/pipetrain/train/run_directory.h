#pragma once

#include <string>

namespace pipetrain {

// The directory of one run (--run-dir): metrics.jsonl, log.txt and the plan of --schedule auto.
// Held by one process at a time.
class RunDirectory {
 public:
  // Creates it with its parents and locks it until destruction. Throws UsageError naming --run-dir:
  // it cannot be created or written, another process holds it, or it has the metrics of an earlier
  // run, which are never overwritten.
  explicit RunDirectory(const std::string& path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  static constexpr const char* metrics = "/metrics.jsonl";
  static constexpr const char* log = "/log.txt";
  static constexpr const char* plan = "/plan.csv";  // for --schedule csv:FILE
  static constexpr const char* lock = "/.lock";
  std::string metrics_file() const { return path_ + metrics; }
  std::string log_file() const { return path_ + log; }
  std::string plan_file() const { return path_ + plan; }

 private:
  std::string path_;
  int lock_ = -1;
};

// What is written at the end must be known to be writable at the start. Throw UsageError that
// starts with the flag unless the file, or files in the directory, can be written once
// make_directory() has made what is missing of the directories. Leave nothing behind.
void require_writable_file(const std::string& path, const std::string& flag);
void require_writable_directory(const std::string& path, const std::string& flag);
// Whether both names lead, or once created will lead, to one file.
bool same_file(const std::string& x, const std::string& y);
// Whether the path leads, or once created will lead, to the directory or to something in it.
bool lies_within(const std::string& path, const std::string& directory);
// With its parents.
void make_directory(const std::string& path, const std::string& flag);

}  // namespace pipetrain
