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

// What a step takes from the host of one rank, and what it hands back one step late.
struct StepInputs {
  double learning_rate = 0;
  bool stop = false;  // asks all ranks to stop after this step
  double busy = 0;    // handed to all ranks as it is: milliseconds of the step before, say
};
struct StepResult {
  int64_t step = 0;
  double loss = 0;           // mean over the valid targets of the global batch
  double grad_norm = 0;      // of the whole model, before clipping; a tied weight counts once
  bool skipped = false;      // loss or norm are not finite: no rank has changed anything
  bool stop = false;         // some rank asked to stop
  int64_t updates = 0;       // so far, without the skipped ones
  std::vector<double> busy;  // per pipeline rank
};

// The end of a step on one rank: tied embedding, global norm, clipping, AdamW. Everything is
// submitted to a stream; nothing waits for the host. Losses, gradients and weights do not depend on
// how the model is spread over ranks, bit by bit.
class Optimizer {
 public:
  // What every rank of the pipeline holds.
  struct Shape {
    GptConfig config;
    Precision precision = Precision::fp32;
    std::vector<std::vector<StageLayers>> stages;  // per pipeline rank
    int pipeline_rank = 0;
    int microbatches = 1;
  };
  struct Groups {
    Communicator* pipeline = nullptr;  // all pipeline ranks in order
    Communicator* tied = nullptr;      // on the ranks of tied_ranks(), where there are two
  };

  // The pipeline ranks that hold a tied embedding, ascending: two where its ends lie apart, else
  // one or none.
  static std::vector<int> tied_ranks(const Shape& shape);

  // Device memory that make() takes from its region.
  static size_t bytes(const Shape& shape);
  // `gradients`: the memory of all gradients of `store`. Moments are set to 0. Blocks the host. All
  // arguments but shape and options must outlive the optimizer.
  static std::unique_ptr<Optimizer> make(const Shape& shape, const AdamwOptions& options,
                                         const ParameterStore& store,
                                         std::span<std::byte> gradients, const Groups& groups,
                                         Region& region);
  virtual ~Optimizer() = default;

  // Where the head writes the losses of the micro-batches (StepData::losses).
  virtual std::byte* losses() const = 0;

  // Gradients become 0. Before the first backward of a step.
  virtual void begin_step(const Stream& stream) = 0;
  // After the last backward, once per step on every rank of the pipeline. Afterwards the gradient
  // of a tied embedding is the total of both its parts. Throws InternalError unless the result of
  // the step before the last one was taken.
  virtual void submit(int64_t step, const StepInputs& inputs, const Stream& stream) = 0;
  // The host waits for the end of that step alone. Each result is taken once.
  virtual StepResult wait_result(int64_t step) = 0;
};

}  // namespace pipetrain
