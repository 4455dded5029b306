#include "cli/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

namespace pipetrain::test {

Arguments words(const std::string& text) {
  std::istringstream stream(text);
  Arguments result;
  for (std::string word; stream >> word;) {
    result.push_back(word);
  }
  return result;
}

Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Arguments pipetrain(const Arguments& arguments) {
  return Arguments{PIPETRAIN_BINARY} + arguments;
}

Arguments on_ranks(int ranks, const Arguments& program) {
  return Arguments{"mpirun", "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none"} +
         program;
}

Environment mpi_environment() {
  return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
          {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
          {"OMPI_MCA_mpi_yield_when_idle", "1"}};
}

Result run_pipetrain(const std::string& arguments, const std::string& directory) {
  return Process(pipetrain(words(arguments)), directory).wait();
}

Result train_on_ranks(int ranks, const std::string& arguments, const std::string& directory) {
  return Process(on_ranks(ranks, pipetrain(words("train " + arguments))), directory,
                 mpi_environment())
      .wait();
}

void write_text(const TemporaryDirectory& directory, const std::string& name, size_t bytes) {
  const std::string sentence = "The quick brown fox jumps over the lazy dog; 0123456789 times.\n";
  std::string text;
  while (text.size() < bytes) {
    text += sentence.substr(text.size() / sentence.size() % 7);
  }
  write_file(directory.file(name), text.substr(0, bytes));
}

std::string shard(const std::vector<int>& tokens, int magic, int version, int count) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count < 0 ? int(tokens.size()) : count;
  const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
  return std::string(reinterpret_cast<const char*>(header.data()), 1024) +
         std::string(reinterpret_cast<const char*>(narrow.data()), 2 * narrow.size());
}

std::vector<std::string> error_lines(const Result& result) {
  std::istringstream stream(result.err);
  std::vector<std::string> found;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("pipetrain: ") && !line.starts_with("pipetrain: warning: ")) {
      found.push_back(line);
    }
  }
  return found;
}

void expect_refused(const Result& result, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.out, "");
  const std::vector<std::string> found = error_lines(result);
  ASSERT_EQ(found.size(), 1u) << result.err;
  for (const std::string& part : parts) {
    EXPECT_PRED2(contains, found.front(), part);
  }
}

std::vector<std::string> listing(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    names.push_back(std::filesystem::relative(entry.path(), directory));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<nlohmann::json> read_metrics(const std::string& run_directory) {
  std::istringstream stream(read_file(run_directory + "/metrics.jsonl"));
  std::vector<nlohmann::json> result;
  for (std::string line; std::getline(stream, line);) {
    result.push_back(nlohmann::json::parse(line));
  }
  return result;
}

std::vector<double> losses(const std::string& run_directory) {
  std::vector<double> result;
  for (const nlohmann::json& step : read_metrics(run_directory)) {
    result.push_back(step["loss"]);
  }
  return result;
}

}  // namespace pipetrain::test
