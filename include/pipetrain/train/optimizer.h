#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pipetrain/comm/communicator.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/device/stream.h"
#include "pipetrain/model/parameters.h"

namespace pipetrain {

struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // decoupled, of the parameters that say so
  double grad_clip = 1;       // of the global norm; 0: no clipping
};

// What the schedule says of an optimizer step.
struct StepUpdate {
  int microbatch = 0;    // with Shape::every_backward: the one whose gradient is there
  int kept_weights = 0;  // slot of the weight versions that gets the current weights before they
                         // change; 0: none
};

// What a step takes from the host of one rank, and what it hands back one step late.
struct StepInputs {
  double learning_rate = 0;
  bool stop = false;  // asks all ranks to stop after this step
  double busy = 0;    // handed to all ranks as it is: milliseconds of the step before, say
};
struct StepResult {
  int64_t step = 0;
  double loss = 0;           // mean over the valid targets of the global batch
  double grad_norm = 0;      // of the whole model, before clipping; a tied weight counts once.
                             // Shape::every_backward: root mean square over the micro-batches
  bool skipped = false;      // loss or norm are not finite: no rank has changed anything.
                             // Shape::every_backward: some update of some stage was left out
  bool stop = false;         // some rank asked to stop
  int64_t updates = 0;       // so far, without the skipped ones (of this rank's stage)
  std::vector<double> busy;  // per pipeline rank
};

// The end of a step on one rank: sums over replicas and tied ends, global norm, clipping, AdamW.
// Everything is submitted to streams; nothing waits for the host. Losses, gradients and weights do
// not depend on how the model is spread over pipeline ranks, bit by bit, nor on `split_state`.
//
// Shape::every_backward (pipedream): every pipeline rank updates its stage by itself after each
// micro-batch, with the gradient of that one alone, and leaves out an update whose gradient is not
// finite. Norm, losses and stop requests travel with the last micro-batch of a step. There is no
// norm of the whole model at an update, so nothing is clipped.
class Optimizer {
 public:
  // What every rank of the job holds.
  struct Shape {
    GptConfig config;
    Precision precision = Precision::fp32;
    std::vector<std::vector<StageLayers>> stages;  // per pipeline rank
    int pipeline_rank = 0;
    int microbatches = 1;  // per replica
    int replicas = 1;
    int replica = 0;
    bool mirrored = false;             // pipeline ranks r and p-1-r hold the same stages
    bool split_state = false;          // --zero 1
    bool every_backward = false;       // an update per micro-batch
    std::vector<int> loss_ranks = {};  // per micro-batch: the pipeline rank that has its loss;
                                       // empty: the one with the head
    // Ranks with the same stages are copies: the replicas of pipeline rank r in order, then with a
    // mirrored placement those of p-1-r > r.
    int copies() const { return mirrored ? 2 * replicas : replicas; }
    int rank_of_copy(int some_pipeline_rank, int copy) const;  // in the job
    Sharding sharding() const;                                 // of this rank
  };
  struct Groups {
    Communicator* job = nullptr;     // all ranks of the job in order
    Communicator* tied = nullptr;    // of tied_ranks() and one replica, where there are two
    Communicator* copies = nullptr;  // in order, where there is more than one
  };

  // The pipeline ranks whose parts of a tied embedding are added, ascending: two where its ends lie
  // apart, else one or none (mirrored: each of the two ranks that hold it has both ends).
  static std::vector<int> tied_ranks(const Shape& shape);

  // Device memory that make() takes from its region.
  static size_t bytes(const Shape& shape);
  // `gradients`: the memory of all gradients of `store`. `reductions`: the stream for sums over
  // copies; null: one of its own. Moments are set to 0. Blocks the host. All arguments but shape
  // and options must outlive the optimizer.
  static std::unique_ptr<Optimizer> make(const Shape& shape, const AdamwOptions& options,
                                         const ParameterStore& store,
                                         std::span<std::byte> gradients, const Groups& groups,
                                         Region& region,
                                         std::shared_ptr<Stream> reductions = nullptr);
  virtual ~Optimizer() = default;

  // Where the head writes the losses of the micro-batches (StepData::losses).
  virtual std::byte* losses() const = 0;

  // Uses every communicator once, with every size: NCCL connects at the first use. Collective over
  // the job; gradients, and with split_state weights, are overwritten. The host waits.
  virtual void warm_up(const Stream& stream) = 0;
  // Gradients become 0. Before the first backward of a step.
  virtual void begin_step(const Stream& stream) = 0;
  // After the last backward of the rank's stage number `stage` in the order of its stages.
  virtual void reduce(int stage, int64_t step, const Stream& stream) = 0;
  // After reduce() of all stages, once per step on every rank of the job; with every_backward once
  // per micro-batch, ascending. Afterwards gradients are those of the global batch (with
  // split_state: in this copy's shard), that of a tied embedding the total of both its parts.
  // Throws InternalError unless the result of the step before the last one was taken.
  virtual void submit(int64_t step, const StepInputs& inputs, const StepUpdate& update,
                      const Stream& stream) = 0;
  // The host waits for the end of that step alone. Each result is taken once.
  virtual StepResult wait_result(int64_t step) = 0;
};

}  // namespace pipetrain
