#include "cli/cost_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipetrain/device/info.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

constexpr size_t gib = size_t(1) << 30;
constexpr double mb = 1e6;
constexpr double gb_per_s = 1e6;  // in bytes per millisecond

// Two ranks on NVLink of an H100; InfiniBand at 400 Gbit/s; PCIe with 16 lanes.
const std::vector<LinkModel>& links() {
  static const std::vector<LinkModel> list = {
      {"nvlink",
       0.012,
       {{1 * mb, 70 * gb_per_s},
        {8 * mb, 168 * gb_per_s},
        {32 * mb, 238 * gb_per_s},
        {1000 * mb, 359 * gb_per_s}}},
      {"pcie4", 0.015, {{1 * mb, 22 * gb_per_s}}},
      {"pcie5", 0.015, {{1 * mb, 37 * gb_per_s}}},
      {"ib400", 0.027, {{1 * mb, 20 * gb_per_s}, {32 * mb, 46 * gb_per_s}}},
  };
  return list;
}

}  // namespace

double LinkModel::bytes_per_ms(double bytes) const {
  if (bytes <= beta.front().bytes) {
    return beta.front().bytes_per_ms;
  }
  for (size_t i = 1; i < beta.size(); ++i) {
    if (bytes <= beta[i].bytes) {
      const double part = (bytes - beta[i - 1].bytes) / (beta[i].bytes - beta[i - 1].bytes);
      return beta[i - 1].bytes_per_ms + part * (beta[i].bytes_per_ms - beta[i - 1].bytes_per_ms);
    }
  }
  return beta.back().bytes_per_ms;
}

DeviceModel device_model(const std::string& name) {
  if (name == "h100") {
    return {name, dense_bf16_peak_flops("NVIDIA H100"), 80 * gib};
  }
  if (name == "h200") {
    return {name, dense_bf16_peak_flops("NVIDIA H200"), 141 * gib};
  }
  if (name == "a100") {
    return {name, dense_bf16_peak_flops("NVIDIA A100"), 80 * gib};
  }
  throw UsageError(fmt::format("--device {}: must be h100, h200 or a100", name));
}

LinkModel link_model(const std::string& name) {
  for (const LinkModel& link : links()) {
    if (link.name == name) {
      return link;
    }
  }
  throw UsageError(fmt::format("--link {}: must be nvlink, pcie4, pcie5 or ib400", name));
}

std::vector<std::string> link_names() {
  std::vector<std::string> names;
  for (const LinkModel& link : links()) {
    names.push_back(link.name);
  }
  return names;
}

Profile predict_profile(const BudgetRequest& request, int ranks, const DeviceModel& device,
                        const LinkModel& link) {
  const double c = request.model.hidden;
  const double t = request.shape.sequence;
  const double rows_per_flops = request.shape.rows() / (device.flops * assumed_efficiency / 1000);
  // Of a layer, per token: qkv, the attention's projection, fc and its projection.
  const double matmuls = (6 + 2 + 8 + 8) * c * c;
  const double attention = 2 * c * t;
  const SlotPolicy& slots = request.slots;
  const double again = slots.recompute == Recompute::none        ? 0
                       : slots.recompute == Recompute::attention ? 6 * c * c + attention
                                                                 : 16 * c * c + attention;
  const double deferred = slots.defer == Defer::all ? matmuls : 14 * c * c;
  const double head = 2 * c * request.model.padded_vocabulary();
  DeviceProfile parts;
  parts.block.forward = rows_per_flops * (matmuls + attention);
  parts.block.backward_input = rows_per_flops * (again + 2 * (matmuls + attention) - deferred);
  parts.block.backward_weight = rows_per_flops * deferred;
  parts.block.backward = parts.block.backward_input + parts.block.backward_weight;
  parts.head.forward = rows_per_flops * 3 * head;
  const double bytes = double(message_bytes(request.model, request.shape, request.precision));
  return {.ranks = std::vector<DeviceProfile>(size_t(ranks), parts),
          .link = {.latency = link.alpha_ms, .transfer = bytes / link.bytes_per_ms(bytes)}};
}

}  // namespace pipetrain
