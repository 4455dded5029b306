#include "pipetrain/device/memory.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "pipetrain/device/check.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

size_t free_memory() {
  size_t available = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return available;
}

TEST(Buffer, StartsAligned) {
  for (const size_t bytes : {1, 255, 1000}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(Buffer(bytes).data()) % alignment, 0u);
  }
}

TEST(Buffer, GivesItsMemoryBackOnce) {
  const size_t before = free_memory();
  {
    Buffer buffer(64 << 20);
    EXPECT_LE(free_memory() + (64 << 20), before);
    const Buffer moved = std::move(buffer);
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_EQ(moved.bytes(), size_t(64 << 20));
  }
  EXPECT_EQ(free_memory(), before);
}

TEST(Buffer, OfNoBytesIsEmpty) {
  const Buffer buffer(0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0u);
}

TEST(Buffer, ThatDoesNotFitSaysWhatIsFree) {
  try {
    const Buffer buffer(size_t(1) << 46);
    FAIL() << "64 TiB were allocated";
  } catch (const DoesNotFit& error) {
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos) << error.what();
  }
  const Buffer another(1 << 20);  // the error has left nothing behind
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(PinnedBuffer, IsHostMemory) {
  const PinnedBuffer host(4096);
  host.data()[4095] = std::byte(9);
  const Buffer buffer(4096);
  const PinnedBuffer back(4096);
  check(cudaMemcpy(buffer.data(), host.data(), 4096, cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaMemcpy(back.data(), buffer.data(), 4096, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(back.data()[4095], std::byte(9));
}

TEST(Region, PiecesAreAlignedAndDoNotOverlap) {
  const Buffer buffer(aligned(100) + aligned(4 * 300) + aligned(1));
  Region region(buffer);
  std::byte* const first = region.take_bytes(100);
  float* const second = region.take<float>(300);
  std::byte* const third = region.take_bytes(1);
  EXPECT_EQ(first, buffer.data());
  EXPECT_EQ(reinterpret_cast<std::byte*>(second), first + 256);
  EXPECT_EQ(third, first + 256 + 1280);
  EXPECT_EQ(region.left(), 0u);
}

TEST(Region, MayNotTakeOneByteMore) {
  const Buffer buffer(512);
  Region region(buffer);
  EXPECT_THROW(region.take_bytes(513), InternalError);
  region.take_bytes(257);
  EXPECT_THROW(region.take_bytes(1), InternalError);
  EXPECT_THROW(region.take_bytes(~size_t(0)), InternalError);  // would wrap around when aligned
  EXPECT_EQ(region.take_bytes(0), buffer.data() + 512);
}

}  // namespace
}  // namespace pipetrain
