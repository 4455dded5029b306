#pragma once

namespace pipetrain {

// Whether standard output takes ANSI colours: CLICOLOR_FORCE asks for them, NO_COLOR forbids them;
// otherwise where it is a terminal. mpirun hands every rank a terminal of its own, whatever its
// output goes to, so below it only CLICOLOR_FORCE counts.
bool wants_colour();

}  // namespace pipetrain
