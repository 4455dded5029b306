#include "pipetrain/schedule/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "pipetrain/error.h"
#include "schedule/generators.h"

namespace pipetrain::schedule {

namespace {

struct Generator {
  const char* name;
  int default_chunks;
  bool any_chunks;  // else only the default
  bool group;
  Schedule (*generate)(const Request&);
};

constexpr Generator generators[] = {
    {"gpipe", 1, false, false, generate_gpipe},
    {"1f1b", 1, false, false, generate_1f1b},
    {"interleaved", 2, true, true, generate_interleaved},
    {"looped-bfs", 2, true, false, generate_looped_bfs},
    {"zb-h1", 1, false, false, generate_zb_h1},
    {"zb-h2", 1, false, false, generate_zb_h2},
    {"zb-v", 2, false, false, generate_zb_v},
    {"v-half", 2, false, false, generate_v_half},
    {"v-min", 2, false, false, generate_v_min},
    {"dualpipe", 1, false, false, generate_dualpipe},
    {"dualpipe-v", 2, false, false, generate_dualpipe_v},
    {"chimera", 1, false, false, generate_chimera},
    {"pipedream", 1, false, false, generate_pipedream},
    {"pipedream-2bw", 1, false, false, generate_pipedream_2bw},
};

const Generator& find_generator(const std::string& name) {
  const auto found = std::find_if(std::begin(generators), std::end(generators),
                                  [&](const Generator& g) { return g.name == name; });
  if (found == std::end(generators)) {
    throw UsageError(fmt::format("--schedule is '{}'; it must be one of: {} auto, or csv:FILE",
                                 name, fmt::join(schedule_names(), " ")));
  }
  return *found;
}

// A schedule is a list in memory.
void require_list_that_fits(const Request& request) {
  constexpr int64_t most_stages = 1 << 16;
  constexpr int64_t most_forwards = 1 << 23;
  const int64_t stages = int64_t{request.ranks} * request.chunks;
  if (stages > most_stages) {
    throw UsageError(fmt::format("--chunks is {} on {} ranks; the stages must be at most {}",
                                 request.chunks, request.ranks, most_stages));
  }
  if (stages * request.microbatches > most_forwards) {
    throw UsageError(fmt::format("--microbatches is {}; with {} stages it must be at most {}",
                                 request.microbatches, stages, most_forwards / stages));
  }
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Generator& generator : generators) {
    names.push_back(generator.name);
  }
  return names;
}

Schedule generate(const Request& request) {
  const Generator& generator = find_generator(request.name);
  Request resolved = request;
  if (request.chunks == 0) {
    resolved.chunks = generator.default_chunks;
  }
  if (!generator.any_chunks && resolved.chunks != generator.default_chunks) {
    throw UsageError(fmt::format("--chunks is {}; --schedule {} has {}", request.chunks,
                                 request.name, generator.default_chunks));
  }
  if (request.group != 0 && !generator.group) {
    throw UsageError(fmt::format("--group is {}; --schedule {} has no groups, leave it out",
                                 request.group, request.name));
  }
  // Checks the counts before a generator divides by them.
  Placement(Placement::Kind::loop, resolved.ranks, resolved.chunks, resolved.microbatches);
  require_list_that_fits(resolved);
  return generator.generate(resolved);
}

}  // namespace pipetrain::schedule
