#include "schedule/walk.h"

#include <fmt/format.h>

namespace pipetrain::schedule {

std::string describe_deadlock(const std::vector<Wait>& waits, const EntryName& name) {
  const auto of_rank = [&](int rank) {
    return std::find_if(waits.begin(), waits.end(), [&](const Wait& w) { return w.rank == rank; });
  };
  std::vector<int> chain;
  int rank = waits.front().rank;
  while (of_rank(rank) != waits.end() &&
         std::find(chain.begin(), chain.end(), rank) == chain.end()) {
    chain.push_back(rank);
    rank = of_rank(rank)->needs_rank;
  }
  const auto circle = std::find(chain.begin(), chain.end(), rank);
  if (circle != chain.end()) {
    chain.erase(chain.begin(), circle);
  }
  std::string text;
  for (const int link : chain) {
    const Wait& wait = *of_rank(link);
    const std::string entry = name ? name(wait.rank, wait.position)
                                   : fmt::format("rank {}, position {}: {}", wait.rank,
                                                 wait.position, to_string(wait.action));
    text += fmt::format("{}{} waits for {} of rank {}", text.empty() ? "" : "; ", entry,
                        to_string(wait.needs), wait.needs_rank);
  }
  return text;
}

}  // namespace pipetrain::schedule
