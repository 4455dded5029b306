#include "pipetrain/model/slot_policy.h"

#include <fmt/format.h>

#include "pipetrain/error.h"

namespace pipetrain {

Recompute parse_recompute(const std::string& text) {
  for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
    if (to_string(recompute) == text) {
      return recompute;
    }
  }
  throw UsageError(fmt::format("--recompute {}: must be none, attention or full", text));
}

Defer parse_defer(const std::string& text) {
  for (const Defer defer : {Defer::all, Defer::cheap}) {
    if (to_string(defer) == text) {
      return defer;
    }
  }
  throw UsageError(fmt::format("--defer {}: must be all or cheap", text));
}

std::string to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::attention:
      return "attention";
    case Recompute::full:
      return "full";
  }
  throw InternalError(fmt::format("recompute {} is unknown", static_cast<int>(recompute)));
}

std::string to_string(Defer defer) {
  switch (defer) {
    case Defer::all:
      return "all";
    case Defer::cheap:
      return "cheap";
  }
  throw InternalError(fmt::format("defer {} is unknown", static_cast<int>(defer)));
}

}  // namespace pipetrain
