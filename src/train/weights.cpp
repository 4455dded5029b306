#include "pipetrain/train/weights.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "kernels/types.h"
#include "pipetrain/device/check.h"
#include "pipetrain/error.h"
#include "pipetrain/progress.h"
#include "train/output_file.h"

namespace pipetrain {
namespace {

constexpr size_t piece_bytes = size_t(1) << 26;  // that are copied between two reports of progress

void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  for (size_t done = 0; done < bytes; done += piece_bytes) {
    check(cudaMemcpy(static_cast<std::byte*>(to) + done, static_cast<const std::byte*>(from) + done,
                     std::min(piece_bytes, bytes - done), kind),
          "cudaMemcpy");
    report_progress();
  }
}

// Elements of `values`, which zeros follow, rounded to float first where T is not double.
template <typename T>
void upload(std::byte* device, const std::vector<double>& values, const ElementRange& elements) {
  constexpr size_t most = size_t(1) << 20;
  std::vector<T> piece;
  for (size_t done = 0; done < elements.count; done += piece.size()) {
    piece.assign(std::min(most, elements.count - done), T(0.0F));
    for (size_t i = 0; i < piece.size() && elements.first + done + i < values.size(); ++i) {
      const double value = values[elements.first + done + i];
      piece[i] = std::is_same_v<T, double> ? T(value) : T(float(value));
    }
    copy(device + done * sizeof(T), piece.data(), piece.size() * sizeof(T), cudaMemcpyHostToDevice);
    // A copy may outlast its call, but not this one: the piece is used again.
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
}

// The elements of a parameter that this rank can give: of a gradient the whole global batch's.
ElementRange given_by(const LocalParameter& local, StoredTensor which, const Sharding& sharding) {
  const bool part =
      which == StoredTensor::gradient ? sharding.split_state : local.separate_master();
  return without_padding(part ? local.state : ElementRange{0, local.parameter->padded_elements},
                         local.parameter->elements());
}

// A rank's piece of a parameter.
struct Piece {
  size_t parameter = 0;
  int rank = 0;  // of the job
  ElementRange elements;
};

template <typename T>
std::vector<T> elements_of(const std::vector<std::byte>& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

// All parameters in order, each in pieces of as few ranks as it takes, lower ones first. Collective
// over the job.
std::vector<Piece> pieces(const ParameterStore& store, StoredTensor which, Control& control) {
  const std::vector<Parameter>& table = store.table();
  std::vector<ElementRange> held(table.size());
  for (const LocalParameter& local : store.parameters()) {
    held[local.table_index] = given_by(local, which, store.sharding());
  }
  const auto gathered = control.gather(std::as_bytes(std::span(held)), 0);
  std::vector<Piece> result;
  std::vector<std::vector<ElementRange>> of_ranks;
  for (const std::vector<std::byte>& bytes : gathered) {
    of_ranks.push_back(elements_of<ElementRange>(bytes));
  }
  for (size_t index = 0; index < table.size() && control.rank() == 0; ++index) {
    for (size_t done = 0; done < table[index].elements();) {
      const auto has_next = [&](const std::vector<ElementRange>& ranges) {
        return ranges[index].first <= done && done < ranges[index].first + ranges[index].count;
      };
      const auto found = std::find_if(of_ranks.begin(), of_ranks.end(), has_next);
      if (found == of_ranks.end()) {
        throw InternalError(fmt::format("no rank holds element {} of {}", done, table[index].name));
      }
      const ElementRange& range = (*found)[index];
      const size_t end = range.first + range.count;
      result.push_back({index, int(found - of_ranks.begin()), {done, end - done}});
      done = end;
    }
  }
  const auto bytes = std::as_bytes(std::span(result));
  std::vector<std::byte> packed(bytes.begin(), bytes.end());
  control.broadcast(packed, 0);
  return elements_of<Piece>(packed);
}

std::vector<std::byte> download(const LocalParameter& local, StoredTensor which,
                                const ElementRange& elements, size_t element_bytes) {
  const std::byte* device = local.gradient + elements.first * element_bytes;
  if (which == StoredTensor::master) {
    const size_t first = local.separate_master() ? local.state.first : 0;
    device = local.master + (elements.first - first) * element_bytes;
  }
  std::vector<std::byte> host(elements.count * element_bytes);
  copy(host.data(), device, host.size(), cudaMemcpyDeviceToHost);
  return host;
}

}  // namespace

void set_weights(const ParameterStore& store, Precision precision, const ParameterValues& values) {
  for (const LocalParameter& local : store.parameters()) {
    const std::vector<double> exact = values(*local.parameter);
    const ElementRange all = {0, local.parameter->padded_elements};
    if (precision == Precision::fp64) {
      upload<double>(local.master, exact, all);
    } else if (local.weight_element < sizeof(float)) {
      if (local.separate_master() && local.state.count > 0) {
        upload<float>(local.master, exact, local.state);
      }
      upload<kernels::bf16>(local.weight, exact, all);
    } else {
      upload<float>(local.weight, exact, all);
    }
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // a copy may outlast its call
  for (int slot = 1; slot < store.versions(); ++slot) {
    const std::span<std::byte> version = store.weights(slot);
    copy(version.data(), store.weights(0).data(), version.size(), cudaMemcpyDeviceToDevice);
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void write_tensors(const std::string& path, StoredTensor which, const ParameterStore& store,
                   Precision precision, Control& control, const std::string& name_prefix) {
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
  std::vector<std::byte> tensor;
  for (const Piece& piece : pieces(store, which, control)) {
    const Parameter& parameter = store.table()[piece.parameter];
    const bool mine = piece.rank == control.rank();
    std::vector<std::byte> data;
    if (mine) {
      if (!writes) {
        control.receive(0);
      }
      data = download(*store.find(parameter.name), which, piece.elements,
                      accumulator_bytes(precision));
    }
    // A piece is sent when rank 0 asks for it, so that it never holds two tensors.
    if (writes && !mine) {
      control.send(std::vector<std::byte>(1), piece.rank);
      data = control.receive(piece.rank);
    } else if (mine && !writes) {
      control.send(data, 0);
    }
    if (writes) {
      tensor.insert(tensor.end(), data.begin(), data.end());
      if (piece.elements.first + piece.elements.count == parameter.elements()) {
        writer->write(tensor);
        tensor.clear();
      }
    }
  }
  if (writes) {
    writer->finish();
  }
}

void export_huggingface(const std::string& directory, const GptConfig& config,
                        const HuggingFaceConfig* source, const ParameterStore& store,
                        Precision precision, Control& control) {
  // Both files are complete before one takes its name: a model that lay there stays whole if not.
  std::optional<OutputFile> file;
  if (control.rank() == 0) {
    file.emplace(directory + "/config.json");
    file->write(exported_config(config, source));
    file->complete();
  }
  // Hugging Face reads names without the prefix as the transformer alone: fine for a tied head,
  // which follows from it, an error for one of its own.
  write_tensors(directory + "/model.safetensors", StoredTensor::master, store, precision, control,
                config.tied_head ? "" : "transformer.");
  if (file) {
    file->finish();
  }
}

}  // namespace pipetrain
