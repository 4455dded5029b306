#ifdef PIPETRAIN_HOST

#include "tests/emulator/strict_fixture.h"

namespace pipetrain::test {
namespace {

using Occupy = Strict;

TEST_F(Occupy, RefusesWhatIsNoStreamAndNoTime) {
  expect_refused(emulator::occupy(nullptr, 1), cudaErrorInvalidValue);
  expect_refused(emulator::occupy(new_stream(), -1), cudaErrorInvalidValue);
}

TEST_F(Occupy, EndsAfterTheOperationsBeforeIt) {
  cudaStream_t stream = new_stream();
  Gate gate(stream);
  ok(emulator::occupy(stream, 0));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  gate.open();
  ok(cudaStreamSynchronize(stream));
}

}  // namespace
}  // namespace pipetrain::test

#endif
