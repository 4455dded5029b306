#include "pipetrain/device/event.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "pipetrain/device/check.h"
#include "pipetrain/device/memory.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

constexpr Tag tag = {.step = 7, .stage = 3, .microbatch = 5};

std::string error_of_wait(const Event& event, const Tag& wanted) {
  Stream stream;
  try {
    event.wait(stream, wanted);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(Event, WaitOnAnEventNeverRecordedThrowsAndNamesTheTag) {
  const Event event;
  const std::string message = error_of_wait(event, tag);
  EXPECT_NE(message.find("step 7 stage 3 micro-batch 5"), std::string::npos) << message;
  EXPECT_NE(message.find("never"), std::string::npos) << message;
}

// A tag that differs in any one part is another record.
TEST(Event, WaitForAnotherTagThrowsAndNamesBothTags) {
  Stream stream;
  Event event;
  event.record(stream, tag);
  for (const Tag& other : {Tag{8, 3, 5}, Tag{7, 2, 5}, Tag{7, 3, 4}}) {
    const std::string message = error_of_wait(event, other);
    EXPECT_NE(message.find("step 7 stage 3 micro-batch 5"), std::string::npos) << message;
    EXPECT_NE(message.find("step " + std::to_string(other.step) + " stage " +
                           std::to_string(other.stage) + " micro-batch " +
                           std::to_string(other.microbatch)),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(error_of_wait(event, tag), "");
}

TEST(Event, OnlyTheLastRecordCounts) {
  Stream stream;
  Event event;
  event.record(stream, tag);
  event.record(stream, Tag{8, 3, 5});
  EXPECT_NE(error_of_wait(event, tag), "");
  EXPECT_EQ(error_of_wait(event, Tag{8, 3, 5}), "");
}

TEST(Event, MovingKeepsTheRecord) {
  Stream stream;
  Event event;
  event.record(stream, tag);
  const Event moved = std::move(event);
  EXPECT_EQ(error_of_wait(moved, tag), "");
  EXPECT_EQ(moved.tag(), tag);
}

// The writer is busy for a while before it writes: without the wait the reader is first.
TEST(Event, AWaitOrdersTwoStreams) {
  constexpr size_t bytes = 1 << 16;
  constexpr size_t scratch_bytes = 32 << 20;
  Stream writer;
  Stream reader(StreamPriority::high);
  Event written;
  Event read;
  const Buffer scratch(scratch_bytes);
  const Buffer buffer(bytes);
  const PinnedBuffer host(bytes);
  read.record(reader, {});
  for (int i = 1; i <= 5; ++i) {
    const Tag round = {.step = i};
    read.wait(writer, Tag{.step = i - 1});
    check(cudaMemsetAsync(scratch.data(), i, scratch_bytes, writer.get()), "cudaMemsetAsync");
    check(cudaMemsetAsync(buffer.data(), i, bytes, writer.get()), "cudaMemsetAsync");
    written.record(writer, round);
    written.wait(reader, round);
    check(cudaMemcpyAsync(host.data(), buffer.data(), bytes, cudaMemcpyDeviceToHost, reader.get()),
          "cudaMemcpyAsync");
    read.record(reader, round);
    read.synchronize();
    ASSERT_EQ(host.data()[0], std::byte(i));
    ASSERT_EQ(host.data()[bytes - 1], std::byte(i));
  }
}

TEST(Event, DoneFollowsTheStream) {
  Stream stream;
  Event event;
  EXPECT_TRUE(event.done());
  event.record(stream, tag);
  stream.synchronize();
  EXPECT_TRUE(event.done());
}

TEST(Event, TimesAreInOrder) {
  constexpr size_t bytes = 16 << 20;
  Stream stream;
  Event begin(Event::Timing::on);
  Event end(Event::Timing::on);
  const Buffer buffer(bytes);
  begin.record(stream, tag);
  check(cudaMemsetAsync(buffer.data(), 1, bytes, stream.get()), "cudaMemsetAsync");
  end.record(stream, tag);
  end.synchronize();
  EXPECT_GT(end.milliseconds_since(begin), 0);
  EXPECT_LT(end.milliseconds_since(begin), 60e3);
}

}  // namespace
}  // namespace pipetrain
