#pragma once

namespace pipetrain::schedule {

// Which rank owns which stage.
//   loop      stage s on rank s mod p (v = 1: one stage per rank)
//   v         v = 2: stages r and 2p-1-r on rank r; v > 2: up and down again
//   mirrored  micro-batches < m/2: stage s on rank s; the rest: stage s on rank p-1-s, so every
//   rank
//             holds the parameters of two stages
class Placement {
 public:
  enum class Kind { loop, v, mirrored };

  // Throws UsageError unless ranks, chunks, microbatches >= 1; mirrored needs chunks == 1, even
  // numbers of ranks and micro-batches, and an even block that divides the micro-batches (0: m).
  Placement(Kind kind, int ranks, int chunks, int microbatches, int block = 0);

  Kind kind() const { return kind_; }
  int ranks() const { return ranks_; }
  int chunks() const { return chunks_; }           // v: stages per rank and direction
  int stages() const { return ranks_ * chunks_; }  // p*v
  int microbatches() const { return microbatches_; }
  int block() const { return block_; }  // mirrored only, else m

  int owner(int stage, int microbatch) const;
  // Mirrored: 0 where the micro-batch goes down, 1 where it goes up. Other placements: 0.
  int direction(int microbatch) const {
    return kind_ == Kind::mirrored && microbatch % block_ >= block_ / 2 ? 1 : 0;
  }
  // Whether `rank` runs `stage` for any micro-batch.
  bool holds(int rank, int stage) const;

 private:
  Kind kind_;
  int ranks_;
  int chunks_;
  int microbatches_;
  int block_;
};

}  // namespace pipetrain::schedule
