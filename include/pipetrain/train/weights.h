#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/model/parameters.h"
#include "pipetrain/train/huggingface.h"

namespace pipetrain {

// Real shape, row-major: HuggingFaceWeights::values, initial_values, ...
using ParameterValues = std::function<std::vector<double>(const Parameter&)>;

// Sets the weights that this rank holds, one parameter at a time: masters, weights in use (a master
// rounded once), pad rows 0; the same in all weight versions. Blocks the host.
void set_weights(const ParameterStore& store, Precision precision, const ParameterValues& values);

enum class StoredTensor { master, gradient };

// Writes one tensor per parameter, of all ranks, into a safetensors file with Hugging
// Face's names and layout, in the accumulator type (F32, or F64 for fp64). Collective over the job.
// Job rank 0 writes and holds one tensor at a time. Gradients are what the last optimizer step
// used: the mean over the global batch before clipping, of a tied embedding the total of both ends.
// The caller has waited for the device. Throws Error on rank 0 when the file cannot be written.
void write_tensors(const std::string& path, StoredTensor which, const ParameterStore& store,
                   Precision precision, Control& control, const std::string& name_prefix = "");

// Writes config.json and model.safetensors (master weights) into a directory that exists. `source`:
// of --init, may be null. Collective like write_tensors.
void export_huggingface(const std::string& directory, const GptConfig& config,
                        const HuggingFaceConfig* source, const ParameterStore& store,
                        Precision precision, Control& control);

}  // namespace pipetrain
