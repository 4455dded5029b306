#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace pipetrain {

// A subcommand: its flags hang on the main app; `execute` runs after they were read and returns the
// exit code. Errors are thrown.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> execute;
};

Command add_train(CLI::App& main);
Command add_eval(CLI::App& main);
Command add_plan(CLI::App& main);
Command add_bench(CLI::App& main);
Command add_doctor(CLI::App& main);

}  // namespace pipetrain
