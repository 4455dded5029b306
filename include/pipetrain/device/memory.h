#pragma once

#include <cstddef>

namespace pipetrain {

// Every tensor starts at a multiple of this, so that a result cannot depend on where it lies.
constexpr size_t alignment = 256;
constexpr size_t aligned(size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Device memory of the current device. Throws DoesNotFit.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Pinned host memory.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Hands out aligned pieces of a buffer, front to back. A component says beforehand how many bytes
// it takes (the sum of aligned() over its pieces) and may not take one more.
class Region {
 public:
  Region() = default;
  Region(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  explicit Region(const Buffer& buffer) : Region(buffer.data(), buffer.bytes()) {}

  // Throws InternalError when the region is exhausted.
  std::byte* take_bytes(size_t bytes);
  template <typename T>
  T* take(size_t count) {
    return reinterpret_cast<T*>(take_bytes(count * sizeof(T)));
  }
  size_t left() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace pipetrain
