#pragma once

#include "pipetrain/schedule/generate.h"

// One function per schedule; generate.cpp checks what all have in common (counts of at least 1,
// fields that a schedule does not use) and resolves the default of `chunks`.
namespace pipetrain::schedule {

// generate_basic.cpp
Schedule generate_gpipe(const Request& request);
Schedule generate_1f1b(const Request& request);

// generate_interleaved.cpp
Schedule generate_interleaved(const Request& request);
Schedule generate_looped_bfs(const Request& request);

}  // namespace pipetrain::schedule
