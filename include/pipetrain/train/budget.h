#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipetrain/model/config.h"
#include "pipetrain/model/stage.h"
#include "pipetrain/schedule/schedule.h"
#include "pipetrain/train/optimizer.h"

namespace pipetrain {

struct Evaluation;

#ifdef PIPETRAIN_CUDA
inline constexpr bool nccl_takes_device_memory = true;
#else
inline constexpr bool nccl_takes_device_memory = false;  // what is emulated takes the host's
#endif

// Device memory of one rank, in bytes, known before anything is allocated. The trainer allocates
// exactly these pieces; NCCL's own memory is an estimate and allocated by NCCL.
struct Budget {
  size_t weights = 0;           // all versions in use, and fp32 masters where they are separate
                                // (--zero 1: 1/D)
  size_t gradients = 0;         // accumulators
  size_t optimizer = 0;         // moments (--zero 1: 1/D)
  size_t activation_slots = 0;  // F to B or W
  size_t gradient_slots = 0;    // I to W
  size_t channel_slots = 0;     // messages
  size_t workspace = 0;         // with overlapped pairs a second one, for F
  size_t step_data = 0;         // tokens, losses, norms
  size_t nccl = 0;              // estimate; 0 on emulated devices

  size_t allocated() const;  // everything but nccl
  size_t total() const { return allocated() + nccl; }
};

// What a budget is computed from.
struct BudgetRequest {
  GptConfig model;
  MicrobatchShape shape;
  Precision precision = Precision::fp32;
  std::vector<StageLayers> stages;  // of the whole pipeline
  int replicas = 1;
  bool split_state = false;  // --zero 1
  SlotPolicy slots;
  schedule::Update update = schedule::Update::step;  // of the schedule
  bool nccl = nccl_takes_device_memory;              // counted
};

// The model that a schedule with these updates trains. With pipedream first and last stage are
// updated at different times, so embedding and head are separate parameters.
GptConfig trained_model(const GptConfig& model, schedule::Update update);

// The stages of `request` that `rank` holds under the placement.
std::vector<StageLayers> held_stages(const BudgetRequest& request,
                                     const schedule::Placement& placement, int rank);

// Slots of a rank have one size, that of its largest chunk.
size_t activation_slot_bytes(const BudgetRequest& request, const schedule::Placement& placement,
                             int rank);
size_t gradient_slot_bytes(const BudgetRequest& request, const schedule::Placement& placement,
                           int rank);

// Per stage, whether its I leaves its W anything: a stage without layers and, where W needs the
// activation slot alone, any other has no gradient slot.
std::vector<bool> keeps_gradients(const BudgetRequest& request);

// What a pending W holds, in activation slots: both slots together over the activation slot, of the
// rank where that is most.
double weight_memory(const BudgetRequest& request, const schedule::Placement& placement);

Optimizer::Shape optimizer_shape(const BudgetRequest& request, const schedule::Placement& placement,
                                 int rank, int replica = 0);

// Of a pipeline rank; the same for all its replicas. `evaluation`: between training steps, on the
// channels of `schedule`; null: there is none.
Budget rank_budget(const BudgetRequest& request, const schedule::LoweredSchedule& schedule,
                   int rank, const Evaluation* evaluation = nullptr);
// Of an evaluation without training.
Budget evaluation_budget(const BudgetRequest& request, const Evaluation& evaluation, int rank);

// One line: "weights 0.5 MiB, gradients ...; total 12.3 MiB".
std::string to_string(const Budget& budget);
// "512 B", "3.2 KiB", "1.50 GiB".
std::string readable_bytes(size_t bytes);

}  // namespace pipetrain
