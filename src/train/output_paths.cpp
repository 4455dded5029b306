#include "train/output_paths.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "pipetrain/error.h"
#include "pipetrain/train/run_directory.h"

namespace pipetrain {
namespace {

struct NamedFile {
  std::string flag;  // with its value
  std::string path;
};

void add(std::vector<NamedFile>* files, const char* flag, const std::string& value,
         const std::vector<std::string>& names = {""}) {
  if (!value.empty()) {
    for (const std::string& name : names) {
      files->push_back({fmt::format("{} {}", flag, value), value + name});
    }
  }
}

std::vector<NamedFile> files_read(const TrainConfig& config) {
  std::vector<NamedFile> files;
  add(&files, "--config", config.config_file);
  add(&files, "--init", config.init, {"/config.json", "/model.safetensors"});
  if (config.csv_file()) {
    files.push_back({"--schedule " + config.schedule, *config.csv_file()});
  }
  for (const std::string& path : config.data) {
    add(&files, "--data", path);
  }
  for (const std::string& path : config.validation) {
    add(&files, "--validation", path);
  }
  return files;
}

std::vector<NamedFile> files_written(const TrainConfig& config) {
  std::vector<NamedFile> files;
  add(&files, "--trace", config.trace);
  add(&files, "--dump-gradients", config.dump_gradients);
  add(&files, "--export", config.export_dir, {"/config.json", "/model.safetensors"});
  add(&files, "--run-dir", config.run_dir,
      {RunDirectory::metrics, RunDirectory::log, RunDirectory::lock});
  if (config.schedule == "auto") {
    add(&files, "--run-dir", config.run_dir, {RunDirectory::plan});
  }
  return files;
}

}  // namespace

void check_output_paths(const TrainConfig& config) {
  const std::vector<NamedFile> read = files_read(config);
  const std::vector<NamedFile> written = files_written(config);
  std::error_code ignored;
  for (size_t i = 0; i < written.size(); ++i) {
    for (const NamedFile& input : read) {
      if (same_file(written[i].path, input.path)) {
        throw UsageError(fmt::format("{}: would overwrite {}, which {} reads; choose another",
                                     written[i].flag, written[i].path, input.flag));
      }
    }
    for (size_t j = 0; j < i; ++j) {
      if (same_file(written[i].path, written[j].path)) {
        throw UsageError(fmt::format("{}: would overwrite {}, which {} writes; choose another",
                                     written[i].flag, written[i].path, written[j].flag));
      }
      for (const auto& [inner, outer] : {std::pair(i, j), std::pair(j, i)}) {
        // A directory in a file's place is refused by the file's own flag.
        if (!std::filesystem::is_directory(written[outer].path, ignored) &&
            lies_within(written[inner].path, written[outer].path)) {
          throw UsageError(fmt::format(
              "{}: its {} would lie in {}, a file that {} writes; choose another",
              written[inner].flag, written[inner].path, written[outer].path, written[outer].flag));
        }
      }
    }
  }
}

}  // namespace pipetrain
