// Needs the emulator's counters.
#ifdef PIPETRAIN_HOST

#include <emulator.h>
#include <gtest/gtest.h>

#include "pipetrain/device/memory.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

TEST(EmulatedMemory, BuffersAreCountedByTheByteAndFreed) {
  const size_t before = emulator::counters(0).bytes;
  emulator::reset_counters(0);
  {
    const Buffer first(aligned(1 << 20));
    { const Buffer second(aligned(3 << 20)); }
    const Buffer third(aligned(2 << 20));
    EXPECT_EQ(emulator::counters(0).bytes, before + (3 << 20));
  }
  EXPECT_EQ(emulator::counters(0).bytes, before);
  EXPECT_EQ(emulator::counters(0).high_water, before + (4 << 20));
  EXPECT_EQ(emulator::counters(0).allocations, 3);
}

TEST(EmulatedMemory, ABudgetOfExactlyTheLimitFitsAndOneByteMoreDoesNot) {
  const emulator::Settings saved = emulator::settings();
  emulator::Settings limited = saved;
  limited.memory_bytes = emulator::counters(0).bytes + (8 << 20);
  emulator::set_settings(limited);
  EXPECT_NO_THROW(Buffer(8 << 20));
  EXPECT_THROW(Buffer((8 << 20) + 1), DoesNotFit);
  emulator::set_settings(saved);
}

TEST(EmulatedMemory, PinnedMemoryIsNotDeviceMemory) {
  const size_t before = emulator::counters(0).bytes;
  const PinnedBuffer host(1 << 20);
  EXPECT_EQ(emulator::counters(0).bytes, before);
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
