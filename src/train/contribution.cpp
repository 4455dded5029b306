#include "train/contribution.h"

#include <algorithm>

#include "kernels/sum_of_squares.h"

namespace pipetrain {

Contribution::Contribution(const Optimizer::Shape& shape)
    : shape_(shape),
      losses_(size_t(shape.microbatches) * size_t(shape.replicas)),
      ranks_(shape.stages.size() * size_t(shape.replicas), Rank{{}, squares()}) {
  const std::vector<Parameter> table = parameter_table(shape.config);
  parts_.resize(table.size());
  for (size_t pipeline_rank = 0; pipeline_rank < shape.stages.size(); ++pipeline_rank) {
    count(pipeline_rank, table);
  }
  size_t longest = 0;
  for (const Rank& rank : ranks_) {
    longest = std::max(longest, rank.length);
  }
  elements_ = aligned(longest * sizeof(float)) / sizeof(float);
}

void Contribution::count(size_t pipeline_rank, const std::vector<Parameter>& table) {
  const int copies = shape_.copies();
  for (const ParameterUnit& unit :
       parameter_units(table, shape_.stages[pipeline_rank], shape_.precision, copies)) {
    for (const ParameterUnit::Member& member : unit.members) {
      std::vector<Part>& parts = parts_[member.table_index];
      if (!parts.empty()) {  // a lower pipeline rank counts it
        continue;
      }
      for (int copy = 0; copy < copies; ++copy) {
        const ElementRange shard = without_padding(unit.shard_of(member, copy, copies),
                                                   table[member.table_index].elements());
        if (shard.count == 0) {
          continue;
        }
        const size_t rank = size_t(shape_.rank_of_copy(int(pipeline_rank), copy));
        const size_t blocks = kernels::norm_blocks(shard.count);
        ranks_[rank].squares.push_back({member.table_index, shard, ranks_[rank].length});
        parts.push_back({rank, ranks_[rank].length, blocks});
        ranks_[rank].length += blocks;
      }
    }
  }
}

size_t Contribution::loss_rank(size_t microbatch) const {
  if (!shape_.loss_ranks.empty()) {
    return size_t(shape_.loss_ranks[microbatch]);
  }
  const auto has_head = [](const std::vector<StageLayers>& stages) {
    return std::any_of(stages.begin(), stages.end(), [](const auto& stage) { return stage.head; });
  };
  return size_t(std::find_if(shape_.stages.begin(), shape_.stages.end(), has_head) -
                shape_.stages.begin());
}

std::vector<int> Contribution::block_positions(size_t first, size_t last) const {
  std::vector<int> result;
  for (const std::vector<Part>& parts : parts_) {
    for (const Part& part : parts) {
      for (size_t block = 0; block < part.blocks && first <= part.rank && part.rank < last;
           ++block) {
        result.push_back(int(at(part.rank, part.first + block)));
      }
    }
  }
  return result;
}

Contribution::Positions Contribution::positions() const {
  Positions result{block_positions(0, ranks()), {}, {}};
  const auto replicas = size_t(shape_.replicas);
  for (size_t global = 0; global < losses_; ++global) {
    const size_t microbatch = global / replicas;
    result.losses.push_back(
        int(at(loss_rank(microbatch) * replicas + global % replicas, microbatch)));
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    result.stops.push_back(int(at(rank, stop())));
  }
  return result;
}

}  // namespace pipetrain
