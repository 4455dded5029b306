#pragma once

#include "pipetrain/schedule/generate.h"

// One function per schedule; generate.cpp checks what all have in common (counts of at least 1,
// fields that a schedule does not use) and resolves the default of `chunks`.
namespace pipetrain::schedule {

// generate_basic.cpp
Schedule generate_gpipe(const Request& request);
Schedule generate_1f1b(const Request& request);
Schedule generate_pipedream(const Request& request);
Schedule generate_pipedream_2bw(const Request& request);

// generate_interleaved.cpp
Schedule generate_interleaved(const Request& request);
Schedule generate_looped_bfs(const Request& request);

// generate_zero_bubble.cpp
Schedule generate_zb_h1(const Request& request);
Schedule generate_zb_h2(const Request& request);
Schedule generate_zb_v(const Request& request);

// generate_building_block.cpp
Schedule generate_v_half(const Request& request);
Schedule generate_v_min(const Request& request);

// generate_dualpipe.cpp
Schedule generate_dualpipe(const Request& request);
Schedule generate_dualpipe_v(const Request& request);

// generate_chimera.cpp
Schedule generate_chimera(const Request& request);

}  // namespace pipetrain::schedule
