#include "pipetrain/cli/run.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "cli/command.h"
#include "cli/config_file.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/comm/environment.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

std::string version() {
  return fmt::format("pipetrain {} ({} flavour, {} build; {})", PIPETRAIN_VERSION,
                     PIPETRAIN_FLAVOUR, PIPETRAIN_BUILD, PIPETRAIN_REASON);
}

// One line per error: what was given, what is allowed, which flag. Wrong usage, and what does not
// fit, are found by all ranks alike: the first one reports it, and the others leave it the time to,
// for mpirun ends all ranks as soon as one has left.
int report(ExitCode code, std::string message) {
  const bool common = code == ExitCode::usage || code == ExitCode::does_not_fit;
  if (common && launched_rank() != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return int(code);
  }
  while (!message.empty() && message.back() == '\n') {
    message.pop_back();
  }
  for (char& c : message) {
    c = c == '\n' ? ' ' : c;
  }
  fmt::print(stderr, "pipetrain: {}\n", message);
  return int(code);
}

int parse_and_run(int argc, char** argv) {
  CLI::App main{"Pipeline-parallel training of GPT models"};
  main.name("pipetrain");
  main.set_version_flag("--version", version());
  main.require_subcommand(1);
  main.failure_message(CLI::FailureMessage::simple);
  add_config_file(main);
  const std::vector<Command> commands = {add_train(main), add_plan(main), add_doctor(main)};
  for (const Command& command : commands) {
    command.app->fallthrough();  // for --config behind the subcommand
  }
  try {
    main.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return main.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(ExitCode::usage, error.what());
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) {
      return command.execute();
    }
  }
  return report(ExitCode::usage, "no subcommand was given; see pipetrain --help");
}

}  // namespace

int run(int argc, char** argv) {
  set_environment();
  int code = 0;
  try {
    code = parse_and_run(argc, argv);
  } catch (const Error& error) {
    code = report(error.code(), error.what());
  } catch (const std::exception& error) {
    code = report(ExitCode::other, error.what());
  }
  // A rank that failed must not wait for its peers in a destructor.
  if (code != 0) {
    end_job(code);
  }
  return code;
}

}  // namespace pipetrain
