#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/process.h"

namespace pipetrain::test {

using Arguments = std::vector<std::string>;

// Words of `text`, which are arguments without spaces.
Arguments words(const std::string& text);
Arguments operator+(Arguments first, const Arguments& second);

// The program's command line: pipetrain ARGUMENTS.
Arguments pipetrain(const Arguments& arguments);
// The same under mpirun, with what root, containers and few cores need.
Arguments on_ranks(int ranks, const Arguments& program);
Environment mpi_environment();

Result run_pipetrain(const std::string& arguments, const std::string& directory);
// mpirun -n RANKS pipetrain train ARGUMENTS
Result train_on_ranks(int ranks, const std::string& arguments, const std::string& directory);

// What the program's output calls the device.
#ifdef PIPETRAIN_CUDA
inline const std::string device_kind = "cuda";
#else
inline const std::string device_kind = "host";
#endif

// A model that takes no time, and a step that does not either.
inline const std::string tiny_model = "--layers 4 --hidden 16 --heads 2 --sequence-length 8 ";
// Writes a file `name` of `bytes` bytes of text in `directory`.
void write_text(const TemporaryDirectory& directory, const std::string& name, size_t bytes);
// An llm.c token shard whose header may lie.
std::string shard(const std::vector<int>& tokens, int magic = 20240520, int version = 1,
                  int count = -1);

// The lines of standard error that are the program's own reports of errors.
std::vector<std::string> error_lines(const Result& result);
// Requires exit code `code` and one line of error that holds all of `parts`.
void expect_refused(const Result& result, int code, const std::vector<std::string>& parts);

// Names of everything below `directory`, sorted.
std::vector<std::string> listing(const std::string& directory);
std::vector<nlohmann::json> read_metrics(const std::string& run_directory);
std::vector<double> losses(const std::string& run_directory);

}  // namespace pipetrain::test
