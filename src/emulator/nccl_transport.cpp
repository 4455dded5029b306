#include "emulator/nccl_transport.h"

#include <fmt/format.h>

namespace emulator::nccl {

const char* type_name(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return "int8";
    case ncclUint8:
      return "uint8";
    case ncclInt32:
      return "int32";
    case ncclInt64:
      return "int64";
    case ncclFloat32:
      return "float32";
    case ncclFloat64:
      return "float64";
    case ncclBfloat16:
      return "bfloat16";
  }
  return "unknown type";
}

namespace {

std::string describe(const Envelope& envelope) {
  static constexpr const char* operations[] = {"send and receive", "all-reduce", "reduce-scatter",
                                               "all-gather", "broadcast"};
  const bool reduces = envelope.operation == Operation::all_reduce ||
                       envelope.operation == Operation::reduce_scatter;
  return fmt::format(
      "{} of {} x {}{}{}", operations[size_t(envelope.operation)], envelope.count,
      type_name(ncclDataType_t(envelope.type)),
      !reduces                        ? ""
      : envelope.reduction == ncclSum ? ", sum"
                                      : ", max",
      envelope.operation == Operation::broadcast ? fmt::format(", root {}", envelope.root) : "");
}

}  // namespace

std::string disagreement(int rank, const Transfer& mine, const Envelope& theirs) {
  return fmt::format("rank {} {} rank {} a {}, and the other end a {}", rank,
                     mine.sends ? "sends to" : "receives from", mine.peer, describe(mine.envelope),
                     describe(theirs));
}

void Flow::finish() {
  ++finished;
  started = false;
  moved = 0;
  arrival_ns = 0;
}

std::vector<Flow> flows_of(std::span<const Transfer> transfers) {
  std::vector<Flow> flows;
  for (const Transfer& transfer : transfers) {
    Flow* found = nullptr;
    for (Flow& flow : flows) {
      if (flow.peer == transfer.peer && flow.sends == transfer.sends) {
        found = &flow;
      }
    }
    if (found == nullptr) {
      found = &flows.emplace_back();
      found->sends = transfer.sends;
      found->peer = transfer.peer;
    }
    found->queue.push_back(&transfer);
  }
  return flows;
}

}  // namespace emulator::nccl
