#pragma once

#include <string>

#include "pipetrain/comm/control.h"

namespace pipetrain {

// Uses every operation of a control, on all its ranks at once, and returns the first thing that is
// wrong on this rank: empty if nothing is. The same for threads and for MPI.
std::string check_control(Control& control);

}  // namespace pipetrain
