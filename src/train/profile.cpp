#include "pipetrain/train/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "pipetrain/comm/agree.h"
#include "pipetrain/comm/channel.h"
#include "pipetrain/comm/warm_up.h"
#include "pipetrain/device/check.h"
#include "pipetrain/device/event.h"
#include "pipetrain/device/info.h"
#include "pipetrain/model/stage.h"
#include "pipetrain/progress.h"

namespace pipetrain {
namespace {

constexpr int warm_up_runs = 2;
constexpr int measured_runs = 5;  // the shortest counts

// What disturbs a measurement only makes it longer.
double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

// ---- one part of the model

constexpr StageLayers block_part = {.first_layer = 0, .layers = 1};
constexpr StageLayers embedding_part = {.first_layer = 0, .layers = 0, .embedding = true};
constexpr StageLayers head_part = {.first_layer = 0, .layers = 0, .head = true};

// The pieces of scratch memory that a part needs.
struct PartBytes {
  PartBytes(const BudgetRequest& request, const StageLayers& part)
      : parameters(ParameterStore::bytes(
            request.model, {part}, request.precision,
            {.copies = request.replicas, .copy = 0, .split_state = request.split_state})),
        workspace(workspace_bytes(request.model, request.shape, request.precision, {part},
                                  request.slots)),
        slot(activation_slot_bytes(request.model, request.shape, request.precision, part,
                                   request.slots)),
        gradient_slot(gradient_slot_bytes(request.model, request.shape, request.precision, part,
                                          request.slots)),
        message(message_bytes(request.model, request.shape, request.precision)),
        tokens(size_t(request.shape.rows()) * sizeof(int)) {}

  size_t sum() const {
    return aligned(parameters.weights) + aligned(parameters.gradients) +
           aligned(parameters.optimizer) + aligned(workspace) + aligned(slot) +
           aligned(gradient_slot) + 2 * aligned(message) + aligned(tokens) + 2 * alignment;
  }

  ParameterStore::Bytes parameters;
  size_t workspace;
  size_t slot;
  size_t gradient_slot;
  size_t message;
  size_t tokens;
};

Region region_of(Region& memory, size_t bytes) {
  return {memory.take_bytes(bytes), bytes};
}

// A part with parameters, slots and messages of its own.
class Part {
 public:
  Part(const BudgetRequest& request, const StageLayers& part)
      : part_(part),
        bytes_(request, part),
        memory_(bytes_.sum()),
        tokens_(bytes_.tokens),
        scale_(sizeof(double)) {
    // Every byte 0x3c: 0.0115 in bf16 and fp32, so that all numbers of a pass are finite.
    check(cudaMemsetAsync(memory_.data(), 0x3c, memory_.bytes(), stream_.get()), "cudaMemsetAsync");
    Region memory(memory_);
    Region weights = region_of(memory, bytes_.parameters.weights);
    Region gradients = region_of(memory, bytes_.parameters.gradients);
    Region moments = region_of(memory, bytes_.parameters.optimizer);
    Region workspace = region_of(memory, bytes_.workspace);
    store_ = std::make_unique<ParameterStore>(
        request.model, std::vector{part}, request.precision, weights, gradients, moments,
        Sharding{.copies = request.replicas, .copy = 0, .split_state = request.split_state});
    workspace_ = make_gpt_workspace(request.model, request.shape, request.precision, {part},
                                    request.slots, workspace);
    slot_ = memory.take_bytes(bytes_.slot);
    gradient_slot_ = memory.take_bytes(bytes_.gradient_slot);
    message_ = memory.take_bytes(bytes_.message);
    result_ = memory.take_bytes(bytes_.message);
    upload_data(request, memory);
    stage_ = make_gpt_stage(request.model, request.shape, request.precision, part, *store_, data_,
                            *workspace_);
  }

  PassTimes measure() {
    std::vector<std::array<Event, 7>> runs;
    for (int run = 0; run < warm_up_runs + measured_runs; ++run) {
      const auto event = [] { return Event(Event::Timing::on); };
      runs.push_back({event(), event(), event(), event(), event(), event(), event()});
    }
    // All are submitted at once: but for the first one the device never waits for the host.
    for (std::array<Event, 7>& events : runs) {
      submit(events);
    }
    for (const std::array<Event, 7>& events : runs) {
      for (const Event& event : events) {
        event.synchronize();
        report_progress();
      }
    }
    const auto pass = [&](size_t first) {
      std::vector<double> times;
      for (size_t run = warm_up_runs; run < runs.size(); ++run) {
        times.push_back(runs[run][first + 1].milliseconds_since(runs[run][first]));
      }
      return least(times);
    };
    return {.forward = pass(0),
            .backward = pass(2),
            .backward_input = pass(4),
            .backward_weight = pass(5)};
  }

 private:
  // Tokens spread over the vocabulary, and the loss scale of one micro-batch.
  void upload_data(const BudgetRequest& request, Region& memory) {
    int* tokens = reinterpret_cast<int*>(tokens_.data());
    for (int i = 0; i < request.shape.rows(); ++i) {
      tokens[i] = int(uint32_t(i) * 2654435761U % uint32_t(request.model.vocabulary));
    }
    std::byte* on_device = memory.take_bytes(bytes_.tokens);
    check(cudaMemcpyAsync(on_device, tokens, bytes_.tokens, cudaMemcpyHostToDevice, stream_.get()),
          "cudaMemcpyAsync");
    const double scale = 1.0 / request.shape.rows();
    const float single = float(scale);
    const size_t bytes = accumulator_bytes(request.precision);
    std::memcpy(scale_.data(), bytes == sizeof(double) ? static_cast<const void*>(&scale) : &single,
                bytes);
    std::byte* scale_on_device = memory.take_bytes(bytes);
    check(cudaMemcpyAsync(scale_on_device, scale_.data(), bytes, cudaMemcpyHostToDevice,
                          stream_.get()),
          "cudaMemcpyAsync");
    data_ = {.inputs = reinterpret_cast<const int*>(on_device),
             .targets = reinterpret_cast<const int*>(on_device),
             .loss_scale = scale_on_device,
             .losses = memory.take_bytes(bytes)};
  }

  // F, B, F, I, W. A backward consumes what its forward has kept.
  void submit(std::array<Event, 7>& events) {
    std::byte* output = part_.head ? nullptr : result_;
    std::byte* input_gradient = part_.embedding ? nullptr : result_;
    const auto load_gradient = [&](std::byte* gradient_slot) {
      if (!part_.head) {
        stage_->load_output_gradient(slot_, gradient_slot, message_, stream_);
      }
    };
    events[0].record(stream_, {});
    stage_->forward(0, slot_, output, true, stream_);
    events[1].record(stream_, {});
    load_gradient(nullptr);
    events[2].record(stream_, {});
    stage_->backward(0, slot_, input_gradient, stream_);
    events[3].record(stream_, {});
    stage_->forward(0, slot_, output, true, stream_);
    load_gradient(gradient_slot_);
    events[4].record(stream_, {});
    stage_->backward_input(0, slot_, gradient_slot_, input_gradient, stream_);
    events[5].record(stream_, {});
    stage_->backward_weight(0, slot_, gradient_slot_, stream_);
    events[6].record(stream_, {});
  }

  StageLayers part_;
  PartBytes bytes_;
  Buffer memory_;
  PinnedBuffer tokens_;
  PinnedBuffer scale_;
  Stream stream_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<GptWorkspace, void (*)(GptWorkspace*)> workspace_{nullptr, nullptr};
  std::byte* slot_ = nullptr;
  std::byte* gradient_slot_ = nullptr;
  std::byte* message_ = nullptr;  // read
  std::byte* result_ = nullptr;   // written
  StepData data_;
  std::unique_ptr<Stage> stage_;
};

// ---- all devices

// One part after the other, each in memory that the one before has left.
DeviceProfile measure_device(const BudgetRequest& request) {
  DeviceProfile profile;
  profile.block = Part(request, block_part).measure();
  profile.embedding = Part(request, embedding_part).measure();
  profile.head = Part(request, head_part).measure();
  return profile;
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

template <typename T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

PassTimes slower(const PassTimes& x, const PassTimes& y) {
  return {.forward = std::max(x.forward, y.forward),
          .backward = std::max(x.backward, y.backward),
          .backward_input = std::max(x.backward_input, y.backward_input),
          .backward_weight = std::max(x.backward_weight, y.backward_weight)};
}

std::vector<DeviceProfile> measure_devices(const BudgetRequest& request, const Grid& grid,
                                           Control& control) {
  const std::vector<int> first = control.first_equal(device_info(current_device()).name);
  std::vector<DeviceProfile> of_job(first.size());
  for (size_t rank = 0; rank < first.size(); ++rank) {
    if (first[rank] != int(rank)) {
      of_job[rank] = of_job[size_t(first[rank])];
      continue;
    }
    std::vector<DeviceProfile> own(1);
    agree(control, [&] {
      if (control.rank() == int(rank)) {
        own.front() = measure_device(request);
      }
    });
    std::vector<std::byte> bytes = bytes_of(own);
    control.broadcast(bytes, int(rank));
    of_job[rank] = values_of<DeviceProfile>(bytes).front();
  }
  std::vector<DeviceProfile> ranks(size_t(grid.pipeline));
  for (size_t rank = 0; rank < of_job.size(); ++rank) {
    DeviceProfile& slowest = ranks[rank / size_t(grid.replicas)];
    slowest = {.block = slower(slowest.block, of_job[rank].block),
               .embedding = slower(slowest.embedding, of_job[rank].embedding),
               .head = slower(slowest.head, of_job[rank].head)};
  }
  return ranks;
}

// ---- links

// Milliseconds per message when messages follow each other.
double time_messages(Channel& channel, std::byte* data, size_t bytes) {
  constexpr int messages = 8;
  const auto move = [&] {
    channel.is_source() ? channel.send(data, bytes) : channel.receive(data, bytes);
  };
  Event begin(Event::Timing::on);
  Event end(Event::Timing::on);
  std::vector<double> times;
  for (int run = 0; run < measured_runs; ++run) {
    move();  // both ends are there when it has arrived
    begin.record(channel.stream(), {});
    for (int i = 0; i < messages; ++i) {
      move();
    }
    end.record(channel.stream(), {});
    channel.stream().synchronize();
    report_progress();
    times.push_back(end.milliseconds_since(begin) / messages);
  }
  return least(times);
}

LinkProfile measure_links(size_t message, const Grid& grid, bool wrap_around, Control& control,
                          Watchdog* watchdog) {
  std::vector<Edge> edges;
  for (int replica = 0; replica < grid.replicas; ++replica) {
    const auto job_rank = [&](int rank) { return rank * grid.replicas + replica; };
    for (int rank = 0; rank + 1 < grid.pipeline; ++rank) {
      edges.push_back({job_rank(rank), job_rank(rank + 1)});
    }
    if (wrap_around && grid.pipeline > 2) {
      edges.push_back({job_rank(grid.pipeline - 1), job_rank(0)});
    }
  }
  const Buffer buffer(message);
  LinkProfile slowest;
  for (const std::vector<size_t>& round : pairing_rounds(edges)) {
    for (const size_t i : round) {
      if (edges[i].source != control.rank() && edges[i].destination != control.rank()) {
        continue;
      }
      const auto [source, destination] = edges[i];
      const Watchdog::HostPhase phase(
          watchdog, fmt::format("rank {} measures its link with rank {}", control.rank(),
                                source == control.rank() ? destination : source));
      Channel channel(control, source, destination);
      warm_up(channel, buffer.data(), message);
      const double latency = time_messages(channel, buffer.data(), 1);
      const double whole = time_messages(channel, buffer.data(), message);
      slowest.latency = std::max(slowest.latency, latency);
      slowest.transfer = std::max(slowest.transfer, whole - latency);
    }
  }
  for (const auto& bytes : control.gather(std::as_bytes(std::span(&slowest, 1)), 0)) {
    const LinkProfile other = values_of<LinkProfile>(bytes).front();
    slowest.latency = std::max(slowest.latency, other.latency);
    slowest.transfer = std::max(slowest.transfer, other.transfer);
  }
  std::vector<std::byte> bytes = bytes_of(std::vector{slowest});
  control.broadcast(bytes, 0);
  return values_of<LinkProfile>(bytes).front();
}

}  // namespace

size_t profile_bytes(const BudgetRequest& request) {
  size_t most = 0;
  for (const StageLayers& part : {block_part, embedding_part, head_part}) {
    most = std::max(most, PartBytes(request, part).sum());
  }
  return most;
}

Profile measure_profile(const BudgetRequest& request, const Grid& grid, bool wrap_around,
                        Control& control, Watchdog* watchdog) {
  Profile profile;
  {
    const Watchdog::HostPhase phase(
        watchdog,
        fmt::format("rank {} profiles its device or waits for those that do", control.rank()));
    profile.ranks = measure_devices(request, grid, control);
  }
  const Watchdog::HostPhase phase(
      watchdog, fmt::format("rank {} profiles its links and waits for the others", control.rank()));
  profile.link = measure_links(message_bytes(request.model, request.shape, request.precision), grid,
                               wrap_around, control, watchdog);
  return profile;
}

}  // namespace pipetrain
