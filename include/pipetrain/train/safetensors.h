#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pipetrain {

// A tensor of a safetensors file (https://huggingface.co/docs/safetensors): little-endian,
// row-major.
struct TensorInfo {
  std::string name;
  std::string dtype;  // as in the file: F32, F16, BF16, F64, I64, ...
  std::vector<size_t> shape;
  size_t begin = 0;  // of its data, counted from the end of the header
  size_t end = 0;

  size_t elements() const;
};

class MappedFile;

// Reads a safetensors file, by mapping. The whole header is checked before anything is read.
class SafetensorsFile {
 public:
  // Throws UsageError that starts with `flag` and the path, for every kind of malformed file.
  explicit SafetensorsFile(const std::string& path, const std::string& flag = "--init");
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const;
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in order of their data
  const TensorInfo* find(const std::string& name) const;               // nullptr: there is none

  std::span<const std::byte> data(const TensorInfo& tensor) const;
  // Of 1024 blocks of 4 KiB of the file, or of the whole.
  uint64_t checksum() const;
  // True for F32, F16, BF16, F64: what values() reads.
  static bool readable(const TensorInfo& tensor);
  // Elements first .. first + count - 1 as doubles, exactly. Throws UsageError on another type.
  void values(const TensorInfo& tensor, size_t first, size_t count, double* values) const;
  std::vector<double> values(const TensorInfo& tensor) const;

 private:
  std::string flag_;
  std::unique_ptr<MappedFile> file_;
  size_t data_begin_ = 0;
  std::vector<TensorInfo> tensors_;
};

// Writes a safetensors file tensor by tensor. It appears under its name, whole, when finish()
// returns; until then, and if finish() is not reached, there is only a temporary file beside it.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    std::string dtype;  // F32 or F64
    std::vector<size_t> shape;
  };
  // Throws Error when the file cannot be created.
  SafetensorsWriter(const std::string& path, const std::vector<Tensor>& tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The data of the next tensor, in the order given. Throws InternalError on another size, Error
  // when the disk is full.
  void write(std::span<const std::byte> data);
  void finish();

 private:
  std::string path_;
  std::vector<size_t> sizes_;
  size_t next_ = 0;
  std::unique_ptr<class OutputFile> file_;
};

}  // namespace pipetrain
