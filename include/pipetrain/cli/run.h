#pragma once

namespace pipetrain {

// The program: reads the command line, runs the subcommand, reports errors in one line on standard
// error and returns the exit code.
int run(int argc, char** argv);

}  // namespace pipetrain
