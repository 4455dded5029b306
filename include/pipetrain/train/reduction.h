#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pipetrain/comm/communicator.h"
#include "pipetrain/device/event.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/model/parameters.h"

namespace pipetrain {

// Sums the gradients of one rank over all ranks that hold the same parameters: replicas, and with a
// mirrored placement the other copy of its stages. A stage's sum runs on a stream of its own as
// soon as its last weight gradient is submitted. Both kinds of `--zero` reduce alike: every copy
// gets the sums of its shard (reduce-scatter), then either the sums or the new weights are
// gathered.
class GradientReduction {
 public:
  struct Groups {
    Communicator* copies = nullptr;  // in order of Sharding::copy; not used with one copy
    // The ranks with the two ends of a tied embedding, where they lie apart: the same copy of both.
    Communicator* tied = nullptr;
  };

  // `stream`: for the reductions; null: one of its own. All else must outlive this.
  GradientReduction(const ParameterStore& store, Precision precision, const Groups& groups,
                    std::shared_ptr<Stream> stream);

  // Gradients of the rank's stage number `stage` are complete on `compute`.
  void reduce(int stage, int64_t step, const Stream& compute);
  // After reduce() of all stages: what follows on `compute` sees the sums, of a tied embedding the
  // total of both ends: in the shard alone with split_state, else everywhere. Throws InternalError
  // if a stage was left out.
  void finish(int64_t step, const Stream& compute);
  // With split_state: every copy's weights in use, from the shards that were updated.
  void gather_weights(const Stream& compute);

 private:
  bool alone() const { return store_.sharding().copies == 1; }
  ncclDataType_t sum_type() const {
    return accumulator_ == sizeof(double) ? ncclFloat64 : ncclFloat32;
  }
  size_t shard_elements(const LocalUnit& unit) const;
  std::byte* shard(std::byte* run, const LocalUnit& unit, size_t element_bytes) const;
  void reduce_scatter(std::byte* run, const LocalUnit& unit);
  void gather(std::byte* run, const LocalUnit& unit, size_t element_bytes, const Stream& stream);
  void add_tied_parts(const LocalUnit& unit, const Stream& compute);

  const ParameterStore& store_;
  Precision precision_;
  size_t accumulator_;  // bytes of one element of a gradient
  Groups groups_;
  std::shared_ptr<Stream> stream_;
  std::vector<Event> produced_;  // by stage
  std::vector<int64_t> reduced_step_;
  Event reduced_;
};

}  // namespace pipetrain
