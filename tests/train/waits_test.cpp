#ifdef PIPETRAIN_HOST

#include <emulator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "pipetrain/train/engine.h"
#include "support/rank_threads.h"
#include "train/training.h"
#include "train/wait_sites.h"

// Every stream wait of a step is needed: without it the run fails. In builds with ThreadSanitizer
// by its report; otherwise, under random delays, by wrong bits. Waits that the others imply, and
// the gates, which order no data, are left out.

namespace pipetrain {
namespace {

using test::WaitSite;

struct Spread {
  std::string schedule;
  int ranks = 2;
  int chunks = 0;
  int microbatches = 4;
  std::vector<int> layers = {};  // per stage; empty: the same for all
};

TrainConfig config_of(const Spread& spread) {
  TrainConfig config = test::fixture_config();
  config.schedule = spread.schedule;
  config.microbatches = spread.microbatches;
  config.microbatch_size = 1;
  config.init = "";  // a small model: all that counts here are the streams
  config.layers = 4;
  config.layers_per_stage = spread.layers;
  config.hidden = 16;
  config.heads = 2;
  config.vocab_size = 257;
  config.sequence_length = 8;
  if (spread.chunks > 0) {
    config.chunks = spread.chunks;
  }
  return config;
}

struct Result {
  std::vector<double> losses_and_norms;  // of the second and the third step
  bool gates_kept = true;                // no receive of the second step started before its gate
};

bool gates_kept(const schedule::LoweredSchedule& lowered, int rank, const RankTrace& trace) {
  const auto& list = lowered.ranks[size_t(rank)];
  std::vector<double> starts(list.size());
  size_t compute = 0;
  size_t transfer = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (is_compute(list[i].action.kind)) {
      starts[i] = trace.compute[compute++].start;
    } else if (is_send(list[i].action.kind) || is_receive(list[i].action.kind)) {
      starts[i] = trace.transfers[transfer++].start;
    }
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].gate >= 0 && starts[i] < starts[size_t(list[i].gate)]) {
      return false;
    }
  }
  return true;
}

// What makes a missing wait of `rank` show: delays of all operations, or of that rank's alone, so
// that all messages could leave too early; links so slow that all computation is faster, or only
// those to one neighbour, so that nothing but the slots holds the rank up. Under a sanitizer and on
// a busy machine computation takes longer, so later tries slow down more.
void disturb(emulator::Settings* settings, int rank, int ranks, uint64_t seed) {
  enum { all_delayed, all_slow, rank_delayed, to_next_slow, to_previous_slow, modes };
  const auto mode = seed % modes;
  const int more = 1 << (seed / (2 * modes));
  const bool delayed = mode == all_delayed || mode == rank_delayed;
  settings->delay_seed = seed;
  settings->max_delay_us = delayed ? 200 * more : 0;
  settings->delay_device = mode == rank_delayed ? rank : -1;
  settings->link_latency_us = delayed ? 0 : 10000 * more;
  settings->link_device = mode == to_next_slow       ? (rank + 1) % ranks
                          : mode == to_previous_slow ? (rank + ranks - 1) % ranks
                                                     : -1;
}

// Three steps; the n-th wait of `rank` in the second one is dropped (-1: none).
Result run(const Spread& spread, int rank, int64_t drop, uint64_t seed) {
  const emulator::Settings saved = emulator::settings();
  emulator::Settings settings = saved;
  disturb(&settings, rank, spread.ranks, seed);
  emulator::Settings dropping = settings;
  dropping.drop_wait = drop;
  dropping.drop_wait_device = rank;
  Result result;
  test::run_ranks(spread.ranks, [&](Control& control) {
    const Job job = make_job(config_of(spread), spread.ranks, control.rank());
    Engine engine(job, control, nullptr);
    engine.set_initial_weights();
    for (int64_t step = 0; step < 3; ++step) {
      engine.drain();
      control.barrier();
      if (control.rank() == rank) {
        emulator::set_settings(step == 1 ? dropping : step == 2 ? saved : settings);
        emulator::reset_counters(rank);
      }
      control.barrier();
      engine.submit(step, {.learning_rate = 1e-3});
      const StepResult end = engine.wait(step);
      const RankTrace trace = engine.trace(step);
      if (control.rank() == rank && step == 1) {
        result.gates_kept = gates_kept(job.lowered, rank, trace);
      }
      if (control.rank() == rank && step > 0) {
        result.losses_and_norms.insert(result.losses_and_norms.end(), {end.loss, end.grad_norm});
      }
    }
    engine.drain();
    control.barrier();
  });
  emulator::set_settings(saved);
  return result;
}

constexpr uint64_t most_seeds = 40;

bool starts_too_early_without(const Spread& spread, int rank, int64_t gate) {
  for (uint64_t seed = 1; seed <= most_seeds; ++seed) {
    if (!run(spread, rank, gate, seed).gates_kept) {
      return true;
    }
  }
  return false;
}

#ifdef __SANITIZE_THREAD__

// A child process runs with the wait dropped; ThreadSanitizer makes it end with an error.
bool fails_without(const Spread& spread, int rank, int64_t wait) {
  bool failed = false;
  EXPECT_EXIT(
      {
        run(spread, rank, wait, 1);
        std::exit(0);
      },
      [&](int status) {
        failed = status != 0;
        return true;
      },
      "");
  return failed;
}

#else

bool fails_without(const Spread& spread, int rank, int64_t wait) {
  const Result reference = run(spread, rank, -1, 0);
  for (uint64_t seed = 1; seed <= most_seeds; ++seed) {
    if (run(spread, rank, wait, seed).losses_and_norms != reference.losses_and_norms) {
      return true;
    }
  }
  return false;
}

#endif

using Kinds = std::set<WaitSite::Kind>;

// Drops each needed wait of these kinds in turn. Returns which kinds of wait are needed.
Kinds expect_needed(const Spread& spread, const Kinds& kinds) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Kinds needed;
  for (int rank = 0; rank < spread.ranks; ++rank) {
    const schedule::LoweredSchedule lowered =
        make_job(config_of(spread), spread.ranks, rank).lowered;
    const std::vector<WaitSite> sites = test::wait_sites(lowered, rank);
    for (size_t wait = 0; wait < sites.size(); ++wait) {
      const WaitSite::Kind kind = sites[wait].kind;
      if (!sites[wait].needed) {
        continue;
      }
      needed.insert(kind);
      if (kinds.contains(kind)) {
        EXPECT_TRUE(kind == WaitSite::Kind::receive_gate
                        ? starts_too_early_without(spread, rank, int64_t(wait))
                        : fails_without(spread, rank, int64_t(wait)))
            << to_string(sites[wait], lowered, rank);
      }
    }
  }
  return needed;
}

void expect_every_wait_is_needed(const Spread& spread, const Kinds& kinds) {
  EXPECT_EQ(expect_needed(spread, kinds), kinds) << "which kinds are needed in this schedule";
}

// The enumeration is that of the executor: it makes exactly these waits.
TEST(WaitSites, AreAllTheWaitsOfAStep) {
  for (const Spread& spread :
       {Spread{"1f1b", 2}, Spread{"1f1b", 4}, Spread{"interleaved", 2, 2}, Spread{"gpipe", 3},
        Spread{"dualpipe-v", 1}, Spread{"dualpipe-v", 2, 0, 5}}) {
    test::run_ranks(spread.ranks, [&](Control& control) {
      const Job job = make_job(config_of(spread), spread.ranks, control.rank());
      Engine engine(job, control, nullptr);
      engine.set_initial_weights();
      engine.drain();
      emulator::reset_counters(control.rank());
      engine.submit(0, {.learning_rate = 1e-3});
      engine.wait(0);
      EXPECT_EQ(size_t(emulator::counters(control.rank()).waits),
                test::wait_sites(job.lowered, control.rank()).size())
          << spread.schedule << " rank " << control.rank();
      engine.drain();
      control.barrier();
    });
  }
}

using enum WaitSite::Kind;

// Fault 21: a buffer is used again before its send has ended.
TEST(WaitSites, TheRunFailsWithoutAnyOneOfThem) {
  expect_every_wait_is_needed({"1f1b", 2}, {input_ready, send_ready, receive_gate});
}

TEST(WaitSites, TheRunFailsWithoutAnyOneOfThemWhereSlotsAreUsedAgain) {
  expect_every_wait_is_needed({"gpipe", 2}, {input_ready, output_free, send_ready, receive_gate});
}

TEST(WaitSites, AnFBesideABackwardWaitsForWhatStandsBeforeThePair) {
  EXPECT_TRUE(expect_needed({"dualpipe-v", 1, 0, 3}, {pair_begin}).contains(pair_begin));
}

// A long F of the last stage beside a short backward of the first one, so that what comes after the
// pair could overtake the F.
TEST(WaitSites, WhatStandsBehindAPairWaitsForItsF) {
  EXPECT_TRUE(expect_needed({"dualpipe-v", 1, 0, 3, {0, 4}}, {pair_end}).contains(pair_end));
}

TEST(SweepWaitSites, TheRunFailsWithoutAnyOneOfThemWithPairs) {
  expect_every_wait_is_needed({"dualpipe", 2, 0, 4, {0, 4}},
                              {input_ready, send_ready, receive_gate, pair_begin, pair_end});
  EXPECT_TRUE(expect_needed({"dualpipe-v", 2, 0, 5}, {pair_begin}).contains(pair_begin));
}

TEST(SweepWaitSites, TheRunFailsWithoutAnyOneOfThemInterleaved) {
  expect_every_wait_is_needed({"interleaved", 2, 2},
                              {input_ready, output_free, send_ready, receive_gate});
}

TEST(SweepWaitSites, TheRunFailsWithoutAnyOneOfThemOnFourRanks) {
  expect_every_wait_is_needed({"1f1b", 4, 0, 6},
                              {input_ready, output_free, send_ready, receive_gate});
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
