#pragma once

#ifdef PIPETRAIN_HOST

#include <emulator.h>

#include "emulator/stream.h"
#include "tests/emulator/cuda_fixture.h"

namespace pipetrain::test {

// For tests that let streams race.
#ifdef __SANITIZE_THREAD__
inline constexpr bool races_are_reported = true;
#else
inline constexpr bool races_are_reported = false;
#endif

// For what is stricter than CUDA, or the emulator's own: each test starts with settings as they
// were when the program started and with fresh counters.
class Strict : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    emulator::reset_counters(0);
  }
  void TearDown() override {
    Cuda::TearDown();
    emulator::set_settings(original_);
    emulator::clear_failure(0);
    cudaGetLastError();
  }

  template <class Change>
  void change_settings(const Change& change) {
    emulator::Settings settings = emulator::settings();
    change(settings);
    emulator::set_settings(settings);
  }

  // Holds a stream until open() is called.
  class Gate {
   public:
    explicit Gate(cudaStream_t stream) {
      emulator::submit(stream, [opened = &opened_] { opened->wait(1); });
    }
    void open() { opened_.raise(); }

   private:
    emulator::Progress opened_;
  };

  void expect_refused(cudaError_t error, cudaError_t expected,
                      const std::source_location& where = std::source_location::current()) {
    EXPECT_EQ(error, expected) << "at line " << where.line();
    EXPECT_EQ(cudaGetLastError(), expected) << "at line " << where.line();
  }

 private:
  const emulator::Settings original_ = emulator::settings();
};

}  // namespace pipetrain::test

#endif
