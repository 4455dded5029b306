#include "pipetrain/cli/run.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/values.h"
#include "pipetrain/comm/agree.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/comm/environment.h"
#include "pipetrain/error.h"
#include "pipetrain/runtime/watchdog.h"

namespace pipetrain {
namespace {

std::string version() {
  return fmt::format("pipetrain {} ({} flavour, {} build; {})", PIPETRAIN_VERSION,
                     PIPETRAIN_FLAVOUR, PIPETRAIN_BUILD, PIPETRAIN_REASON);
}

// The text as one line on standard error.
void print_error(std::string message) {
  while (!message.empty() && message.back() == '\n') {
    message.pop_back();
  }
  for (char& c : message) {
    c = c == '\n' ? ' ' : c;
  }
  std::fprintf(stderr, "pipetrain: %s\n", message.c_str());  // which does not throw
}

constexpr char output_lost[] = "standard output cannot be written; is the disk full?";

// Sleeps, or less when the launcher ends the job.
void wait_for_the_end(std::chrono::milliseconds longest) {
  constexpr std::chrono::milliseconds interval{20};
  for (auto waited = interval; waited < longest && !termination_requested(); waited += interval) {
    std::this_thread::sleep_for(interval);
  }
}

// An error that all ranks find alike: wrong usage, what does not fit, and what they have agreed on.
// The first one reports it, and mpirun ends the others as soon as it has left. A rank that is still
// there then has found something alone.
int report_once(ExitCode code, const std::string& message) {
  if (launched_rank() == 0) {
    print_error(message);
    if (ranks_started() > 1) {  // for the others to find it too, before mpirun ends them
      wait_for_the_end(std::chrono::milliseconds(200));
    }
    return int(code);
  }
  wait_for_the_end(std::chrono::seconds(5));
  if (!termination_requested()) {
    print_error(fmt::format("rank {}: {}", launched_rank(), message));
  }
  return int(code);
}

int parse_and_run(int argc, char** argv) {
  CLI::App main{"Pipeline-parallel training of GPT models"};
  main.name("pipetrain");
  main.set_version_flag("--version", version());
  main.require_subcommand(0, 1);
  main.failure_message(CLI::FailureMessage::simple);
  add_config_file(main);
  const std::vector<Command> commands = {add_train(main), add_eval(main), add_plan(main),
                                         add_bench(main), add_doctor(main)};
  for (const Command& command : commands) {
    command.app->fallthrough();  // for --config behind the subcommand
    command.app->footer(
        "Flags may stand in a TOML file, --config FILE; the command line comes first.");
    require_values(*command.app);
  }
  require_values(main);
  require_list_items(main, {argv + 1, argv + argc});
  try {
    main.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return main.exit(success);
  } catch (const CLI::ConversionError& error) {
    return report_once(ExitCode::usage, fmt::format("{}: out of range", error.what()));
  } catch (const CLI::ParseError& error) {
    return report_once(ExitCode::usage, error.what());
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) {
      return command.execute();
    }
  }
  return report_once(ExitCode::usage, "no subcommand was given; see pipetrain --help");
}

}  // namespace

int run(int argc, char** argv) {
  set_environment();
  int code = 0;
  try {
    code = parse_and_run(argc, argv);
  } catch (const UsageError& error) {
    code = report_once(error.code(), error.what());
  } catch (const DoesNotFit& error) {
    code = report_once(error.code(), error.what());
  } catch (const AgreedError& error) {
    code = report_once(error.code(), error.what());
  } catch (const Error& error) {
    code = int(error.code());
    print_error(error.what());
  } catch (const std::bad_alloc&) {
    code = report_once(ExitCode::does_not_fit, host_memory_exhausted);
  } catch (const std::filesystem::filesystem_error& error) {
    code = int(ExitCode::other);
    print_error(error.what());
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0 || std::ferror(stderr) != 0) {  // thrown by fmt::print
      print_error(output_lost);
      end_job(int(ExitCode::other));
    }
    // Of a thread that cannot be started, say.
    code = report_once(ExitCode::does_not_fit,
                       fmt::format("the system gives no more threads or memory to a process "
                                   "(ulimit -a shows its limits): {}",
                                   error.what()));
  } catch (const std::exception& error) {
    code = int(ExitCode::other);
    print_error(error.what());
  }
  if (code == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    code = int(ExitCode::other);
    print_error(output_lost);
  }
  // A rank that failed must not wait for its peers in a destructor.
  if (code != 0) {
    end_job(code);
  }
  return code;
}

}  // namespace pipetrain
