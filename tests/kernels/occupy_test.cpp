#include "kernels/occupy.h"

#include <gtest/gtest.h>
#include <time.h>

#include "pipetrain/device/event.h"
#include "pipetrain/device/stream.h"

namespace pipetrain::kernels {
namespace {

constexpr int64_t nanoseconds = 20'000'000;
constexpr double milliseconds = 20;

TEST(Occupy, EveryOperationTakesItsTimeFromItsOwnStart) {
  const Stream stream;
  Event begin(Event::Timing::on), middle(Event::Timing::on), end(Event::Timing::on);
  begin.record(stream, {});
  occupy(nanoseconds, stream.get());
  middle.record(stream, {});
  occupy(nanoseconds, stream.get());
  end.record(stream, {});
  end.synchronize();
  EXPECT_GE(middle.milliseconds_since(begin), milliseconds);
  EXPECT_GE(end.milliseconds_since(middle), milliseconds);
}

TEST(Occupy, StreamsAreOccupiedSideBySide) {
  const Stream first, second;
  Event first_begin(Event::Timing::on), first_end(Event::Timing::on);
  Event second_begin(Event::Timing::on), second_end(Event::Timing::on);
  first_begin.record(first, {});
  second_begin.record(second, {});
  occupy(10 * nanoseconds, first.get());
  occupy(10 * nanoseconds, second.get());
  first_end.record(first, {});
  second_end.record(second, {});
  first_end.synchronize();
  second_end.synchronize();
  EXPECT_LT(second_begin.milliseconds_since(first_begin), 10 * milliseconds);
  EXPECT_LT(second_end.milliseconds_since(first_begin), 20 * milliseconds);
}

#ifdef PIPETRAIN_HOST
double process_milliseconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return double(used.tv_sec) * 1e3 + double(used.tv_nsec) * 1e-6;
}

TEST(Occupy, TakesNoCoreOfTheHost) {
  const Stream stream;
  const double before = process_milliseconds();
  occupy(10 * nanoseconds, stream.get());
  stream.synchronize();
  EXPECT_LT(process_milliseconds() - before, milliseconds);
}
#endif

}  // namespace
}  // namespace pipetrain::kernels
