#pragma once

#include <cstddef>
#include <vector>

#include "pipetrain/train/optimizer.h"

namespace pipetrain {

// What each rank of the job contributes to the all-gather of a step, in elements of the accumulator
// type: [losses][stop][busy][sums of squares of what it counts]. All contributions are as long as
// the longest. A parameter is counted by the ranks of the lowest pipeline rank that holds it and
// their copies, each its shard.
class Contribution {
 public:
  explicit Contribution(const Optimizer::Shape& shape);

  // The sums of squares that one rank contributes for one parameter.
  struct Squares {
    size_t parameter = 0;   // of the parameter table
    ElementRange elements;  // of the parameter
    size_t first = 0;       // where its blocks begin in the contribution
  };
  const std::vector<Squares>& squares_of(int rank) const { return ranks_[size_t(rank)].squares; }

  size_t ranks() const { return ranks_.size(); }
  size_t elements() const { return elements_; }
  size_t losses() const { return losses_; }  // of all replicas
  size_t stop() const { return size_t(shape_.microbatches); }
  size_t busy() const { return stop() + 1; }
  size_t squares() const { return busy() + 1; }  // of what this rank counts, from here on
  size_t length(int rank) const { return ranks_[size_t(rank)].length; }  // without the padding

  // Positions in the contributions of all ranks.
  struct Positions {
    std::vector<int> blocks;  // squares, in (tensor, block) order
    std::vector<int> losses;  // in the order of global micro-batches
    std::vector<int> stops;   // requests
  };
  Positions positions() const;
  // The squares of ranks first .. last - 1 alone.
  std::vector<int> block_positions(size_t first, size_t last) const;

 private:
  struct Rank {
    std::vector<Squares> squares;
    size_t length = 0;
  };
  // A parameter's share of one rank.
  struct Part {
    size_t rank = 0;
    size_t first = 0;
    size_t blocks = 0;
  };

  void count(size_t pipeline_rank, const std::vector<Parameter>& table);
  size_t loss_rank(size_t microbatch) const;
  size_t at(size_t rank, size_t element) const { return rank * elements_ + element; }

  Optimizer::Shape shape_;
  size_t losses_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Part>> parts_;  // by parameter, in order of elements
  size_t elements_ = 0;
};

}  // namespace pipetrain
