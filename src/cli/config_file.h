#pragma once

#include <CLI/App.hpp>
#include <string>

namespace pipetrain {

// Adds --config FILE: every flag of the subcommand that was given may stand in that TOML file under
// the same name, flat. The command line comes first. Unknown keys, keys given twice, sections,
// wrong types and a missing file are errors.
void add_config_file(CLI::App& main);

// The file that was given; empty if none was.
std::string given_config_file(const CLI::App& main);

}  // namespace pipetrain
