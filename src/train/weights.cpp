#include "pipetrain/train/weights.h"

#include <cuda_runtime.h>

#include <cstring>
#include <memory>

#include "kernels/types.h"
#include "pipetrain/device/check.h"
#include "pipetrain/error.h"
#include "train/output_file.h"

namespace pipetrain {
namespace {

void upload(std::byte* device, const void* host, size_t bytes) {
  check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

// The job rank that gives each parameter: the lowest that holds it, which is one of replica 0.
// Collective over the job.
std::vector<int> owners(const ParameterStore& store, Control& control) {
  std::vector<std::byte> held(store.table().size());
  for (const LocalParameter& local : store.parameters()) {
    held[local.table_index] = std::byte(1);
  }
  std::vector<std::byte> packed(held.size() * sizeof(int));
  const auto of_ranks = control.gather(held, 0);
  std::vector<int> result(held.size(), -1);
  for (size_t index = 0; index < held.size() && control.rank() == 0; ++index) {
    for (int rank = 0; rank < control.size() && result[index] < 0; ++rank) {
      result[index] = of_ranks[size_t(rank)][index] == std::byte(1) ? rank : -1;
    }
    if (result[index] < 0) {
      throw InternalError("no rank holds " + store.table()[index].name);
    }
  }
  std::memcpy(packed.data(), result.data(), packed.size());
  control.broadcast(packed, 0);
  std::memcpy(result.data(), packed.data(), packed.size());
  return result;
}

std::vector<std::byte> download(const LocalParameter& local, StoredTensor which, size_t bytes) {
  const std::byte* device = which == StoredTensor::master ? local.master : local.gradient;
  std::vector<std::byte> host(bytes);
  check(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return host;
}

}  // namespace

void set_weights(const ParameterStore& store, Precision precision, const ParameterValues& values) {
  for (const LocalParameter& local : store.parameters()) {
    std::vector<double> exact = values(*local.parameter);
    exact.resize(local.parameter->padded_elements, 0.0);
    if (precision == Precision::fp64) {
      upload(local.master, exact.data(), exact.size() * sizeof(double));
      continue;
    }
    const std::vector<float> master(exact.begin(), exact.end());
    upload(local.master, master.data(), master.size() * sizeof(float));
    if (local.weight != local.master) {
      const std::vector<kernels::bf16> weight(master.begin(), master.end());
      upload(local.weight, weight.data(), weight.size() * sizeof(kernels::bf16));
    }
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // a copy may outlast its call
}

void write_tensors(const std::string& path, StoredTensor which, const ParameterStore& store,
                   Precision precision, const Grid& grid, Control& control,
                   const std::string& name_prefix) {
  const std::vector<int> owner = owners(store, control);
  if (grid.replica() != 0) {
    return;
  }
  const bool writes = control.rank() == 0;
  std::unique_ptr<SafetensorsWriter> writer;
  if (writes) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const Parameter& parameter : store.table()) {
      const bool head =
          parameter.name == "lm_head.weight";  // outside of Hugging Face's transformer
      tensors.push_back({(head ? "" : name_prefix) + parameter.name,
                         precision == Precision::fp64 ? "F64" : "F32", parameter.shape});
    }
    writer = std::make_unique<SafetensorsWriter>(path, tensors);
  }
  for (size_t index = 0; index < owner.size(); ++index) {
    const Parameter& parameter = store.table()[index];
    const size_t bytes = parameter.elements() * accumulator_bytes(precision);
    const bool mine = owner[index] == control.rank();
    // A tensor is sent when rank 0 asks for it, so that it never holds two.
    if (writes && !mine) {
      control.send(std::vector<std::byte>(1), owner[index]);
      writer->write(control.receive(owner[index]));
    } else if (mine) {
      const LocalParameter& local = *store.find(parameter.name);
      if (writes) {
        writer->write(download(local, which, bytes));
      } else {
        control.receive(0);
        control.send(download(local, which, bytes), 0);
      }
    }
  }
  if (writes) {
    writer->finish();
  }
}

void export_huggingface(const std::string& directory, const GptConfig& config,
                        const HuggingFaceConfig* source, const ParameterStore& store,
                        Precision precision, const Grid& grid, Control& control) {
  if (control.rank() == 0) {
    OutputFile file(directory + "/config.json");
    file.write(exported_config(config, source));
    file.finish();
  }
  // Hugging Face reads names without the prefix as the transformer alone: fine for a tied head,
  // which follows from it, an error for one of its own.
  write_tensors(directory + "/model.safetensors", StoredTensor::master, store, precision, grid,
                control, config.tied_head ? "" : "transformer.");
}

}  // namespace pipetrain
