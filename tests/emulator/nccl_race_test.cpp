// Under ThreadSanitizer a program that relies on more order than NCCL promises must be reported,
// and one that does not must not. Each program runs in a process of its own; the sanitizer ends it
// with status 66 when it has reported something.

#if defined(PIPETRAIN_HOST) && defined(__SANITIZE_THREAD__)

#include <latch>

#include "nccl_ranks.h"

namespace pipetrain::test {
namespace {

constexpr size_t bytes = 4096;

// The first uses of both communicators, so that no host thread waits later.
void warm_up(Rank& r, ncclComm_t comm, char* buffer) {
  ok(ncclGroupStart());
  ok(ncclSend(buffer, 1, ncclInt8, r.next(), comm, r.stream()));
  ok(ncclRecv(buffer + 1, 1, ncclInt8, r.next(), comm, r.stream()));
  ok(ncclGroupEnd());
  ok(cudaStreamSynchronize(r.stream()));
}

// Nobody waits for the device before both ranks have submitted everything: a host thread that has
// waited knows what ran, and others learn it from that thread by the locks of their calls.
void run(const std::function<void(Rank& r, ncclComm_t second)>& body) {
  std::latch submitted(2);
  in_threads(2, [&](Rank& r) {
    ncclComm_t second = nullptr;
    ok(ncclCommSplit(r.comm(), 0, r.rank(), &second, nullptr));
    char* buffer = r.memory<char>(2);
    warm_up(r, r.comm(), buffer);
    warm_up(r, second, buffer);
    body(r, second);
    submitted.arrive_and_wait();
    ok(cudaDeviceSynchronize());
    ok(ncclCommDestroy(second));
  });
  std::exit(testing::Test::HasFailure() ? 1 : 0);
}

void wait_for(cudaStream_t waiting, cudaStream_t awaited) {
  cudaEvent_t event = nullptr;
  ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  ok(cudaEventRecord(event, awaited));
  ok(cudaStreamWaitEvent(waiting, event, 0));
}

// Rank 0 writes on one stream what it sends on another; rank 1 receives on one stream what it then
// writes on another.
void pass_between_streams(bool waits) {
  run([waits](Rank& r, ncclComm_t) {
    char* data = r.memory<char>(bytes);
    const cudaStream_t compute = r.new_stream();
    if (r.rank() == 0) {
      ok(cudaMemsetAsync(data, 1, bytes, compute));
      if (waits) {
        wait_for(r.stream(), compute);
      }
      ok(ncclSend(data, bytes, ncclInt8, 1, r.comm(), r.stream()));
    } else {
      ok(ncclRecv(data, bytes, ncclInt8, 0, r.comm(), r.stream()));
      if (waits) {
        wait_for(compute, r.stream());
      }
      ok(cudaMemsetAsync(data, 2, bytes, compute));
    }
  });
}

// Rank 0 writes and receives on one stream. Rank 1 sends that message and then another one, which
// rank 0 receives on a second stream, where it writes the same memory again. That is ordered only
// if the end of a send says that the receiver has come that far.
void rely_on_the_end_of_a_send() {
  run([](Rank& r, ncclComm_t second) {
    char* data = r.memory<char>(bytes);
    char* messages = r.memory<char>(2);
    if (r.rank() == 0) {
      const cudaStream_t other = r.new_stream();
      ok(cudaMemsetAsync(data, 1, bytes, r.stream()));
      ok(ncclRecv(messages, 1, ncclInt8, 1, r.comm(), r.stream()));
      ok(ncclRecv(messages + 1, 1, ncclInt8, 1, second, other));
      ok(cudaMemsetAsync(data, 2, bytes, other));
    } else {
      ok(ncclSend(messages, 1, ncclInt8, 0, r.comm(), r.stream()));
      ok(ncclSend(messages + 1, 1, ncclInt8, 0, second, r.stream()));
    }
  });
}

// Two operations of one communicator on two streams, each after or before a write of the same
// memory.
void rely_on_the_order_within_a_communicator() {
  run([](Rank& r, ncclComm_t) {
    char* data = r.memory<char>(bytes);
    char* messages = r.memory<char>(2);
    const cudaStream_t other = r.new_stream();
    if (r.rank() == 0) {
      ok(cudaMemsetAsync(data, 1, bytes, r.stream()));
      ok(ncclSend(messages, 1, ncclInt8, 1, r.comm(), r.stream()));
      ok(ncclSend(messages + 1, 1, ncclInt8, 1, r.comm(), other));
      ok(cudaMemsetAsync(data, 2, bytes, other));
    } else {
      ok(ncclRecv(messages, 1, ncclInt8, 0, r.comm(), r.stream()));
      ok(ncclRecv(messages + 1, 1, ncclInt8, 0, r.comm(), other));
    }
  });
}

class NcclRace : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

const auto reported = testing::ExitedWithCode(66);
const auto clean = testing::ExitedWithCode(0);

TEST_F(NcclRace, AStreamThatDoesNotWaitForAMessageIsReported) {
  EXPECT_EXIT(pass_between_streams(false), reported, "data race");
}
TEST_F(NcclRace, AStreamThatWaitsIsNot) {
  EXPECT_EXIT(pass_between_streams(true), clean, "");
}
TEST_F(NcclRace, RelyingOnTheEndOfASendIsReported) {
  EXPECT_EXIT(rely_on_the_end_of_a_send(), reported, "data race");
}
TEST_F(NcclRace, RelyingOnTheOrderWithinACommunicatorIsReported) {
  EXPECT_EXIT(rely_on_the_order_within_a_communicator(), reported, "data race");
}

}  // namespace
}  // namespace pipetrain::test

#endif
