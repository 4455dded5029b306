#include "pipetrain/schedule/lower.h"

#include <gtest/gtest.h>

#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/simulate.h"
#include "pipetrain/schedule/validate.h"

namespace pipetrain::schedule {
namespace {

TEST(Lower, SlotsAndGatesCostNothing) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 2 * p + 3; ++m) {
        const Schedule schedule = generate({name, p, m});
        EXPECT_DOUBLE_EQ(simulate(lower(schedule), {}).makespan, simulate(schedule, {}).makespan)
            << name << " p=" << p << " m=" << m;
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::schedule
