#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipetrain/train/budget.h"
#include "pipetrain/train/profile.h"

namespace pipetrain {

// Published figures of hardware; predictions, not measurements.
struct DeviceModel {
  std::string name;
  double flops = 0;         // dense bf16 peak, per second
  size_t memory_bytes = 0;  // of one device
};

// t = alpha + bytes / beta; beta grows with the message where the figures say so.
struct LinkModel {
  std::string name;
  double alpha_ms = 0;
  struct Point {
    double bytes = 0;
    double bytes_per_ms = 0;
  };
  std::vector<Point> beta;  // ascending in bytes; linear in between, constant beyond

  double bytes_per_ms(double bytes) const;
  double milliseconds(double bytes) const { return alpha_ms + bytes / bytes_per_ms(bytes); }
};

// h100, h200, a100; nvlink, pcie4, pcie5, ib400. Throw UsageError naming --device or --link.
DeviceModel device_model(const std::string& name);
LinkModel link_model(const std::string& name);
std::vector<std::string> link_names();

// The share of the peak that matmuls are taken to reach.
constexpr double assumed_efficiency = 0.5;

// What measure_profile() would find on `ranks` such devices: milliseconds per micro-batch on
// `device` with hand-offs over `link`. Only sums of I and W are known of a whole backward. The head
// is computed forward and backward in F of the last stage; layers cost 24C^2 + 2CT floating point
// operations per token forward, twice that backward, the attention's part of it in I. To I come
// what is computed again, the forward's share of that, and the weight gradients that are not
// deferred.
Profile predict_profile(const BudgetRequest& request, int ranks, const DeviceModel& device,
                        const LinkModel& link);

}  // namespace pipetrain
