#include "pipetrain/schedule/placement.h"

#include <fmt/format.h>

#include "pipetrain/error.h"

namespace pipetrain::schedule {

Placement::Placement(Kind kind, int ranks, int chunks, int microbatches, int block)
    : kind_(kind),
      ranks_(ranks),
      chunks_(chunks),
      microbatches_(microbatches),
      block_(block == 0 ? microbatches : block) {
  if (ranks < 1) {
    throw UsageError(fmt::format("--ranks is {}; it must be at least 1", ranks));
  }
  if (chunks < 1) {
    throw UsageError(fmt::format("--chunks is {}; it must be at least 1", chunks));
  }
  if (microbatches < 1) {
    throw UsageError(fmt::format("--microbatches is {}; it must be at least 1", microbatches));
  }
  if (kind != Kind::mirrored) {
    return;
  }
  if (chunks != 1) {
    throw UsageError(fmt::format("--chunks is {}; a mirrored placement has 1", chunks));
  }
  if (ranks % 2 != 0) {
    throw UsageError(
        fmt::format("--ranks is {}; a mirrored placement needs an even number", ranks));
  }
  if (microbatches % 2 != 0) {
    throw UsageError(fmt::format("--microbatches is {}; a mirrored placement needs an even number",
                                 microbatches));
  }
  if (block_ < 1 || block_ % 2 != 0 || microbatches % block_ != 0) {
    throw UsageError(
        fmt::format("a mirrored placement has blocks of {} micro-batches; a block must be even and "
                    "divide --microbatches {}",
                    block_, microbatches));
  }
}

int Placement::owner(int stage, int microbatch) const {
  const int round = stage / ranks_;
  const int place = stage % ranks_;
  switch (kind_) {
    case Kind::loop:
      return place;
    case Kind::v:
      return round % 2 == 0 ? place : ranks_ - 1 - place;
    case Kind::mirrored:
      return direction(microbatch) == 0 ? place : ranks_ - 1 - place;
  }
  return place;
}

bool Placement::holds(int rank, int stage) const {
  return owner(stage, 0) == rank || owner(stage, microbatches_ - 1) == rank;
}

}  // namespace pipetrain::schedule
