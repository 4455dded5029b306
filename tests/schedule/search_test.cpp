#include "pipetrain/schedule/search.h"

#include <gtest/gtest.h>

#include "pipetrain/error.h"
#include "pipetrain/schedule/csv.h"
#include "pipetrain/schedule/generate.h"
#include "pipetrain/schedule/lower.h"
#include "pipetrain/schedule/validate.h"
#include "support.h"

namespace pipetrain::schedule {
namespace {

SearchRequest asked(int ranks, int microbatches, const Costs& costs, double limit,
                    Objective objective = Objective::span) {
  SearchRequest result;
  result.ranks = ranks;
  result.microbatches = microbatches;
  result.costs = costs;
  result.activation_limit = {limit};
  result.objective = objective;
  return result;
}

double objective_of(const SearchRequest& request, const Simulation& simulation) {
  return request.objective == Objective::span ? simulation.span : simulation.makespan;
}

// What every result must be.
void expect_sound(const SearchRequest& request, const SearchResult& result,
                  const std::string& what) {
  EXPECT_TRUE(validate(result.schedule).empty()) << what << ": weight gradients do not ascend";
  EXPECT_NO_THROW(validate(lower(result.schedule))) << what;
  for (size_t rank = 0; rank < result.simulation.ranks.size(); ++rank) {
    const std::vector<double>& limits = request.activation_limit;
    const double limit = limits.empty() ? 1e9 : limits[limits.size() == 1 ? 0 : rank];
    EXPECT_LE(result.simulation.ranks[rank].peak_activations, limit + 1e-6)
        << what << ", rank " << rank;
  }
}

// The fixed schedules that fit and whose placement the request allows.
std::vector<Schedule> fixed_that_fit(const SearchRequest& request) {
  std::vector<Schedule> schedules;
  for (const std::string& name : schedule_names()) {
    for (int chunks = 0; chunks <= request.max_chunks; ++chunks) {
      Request generated{name, request.ranks, request.microbatches, chunks, 0};
      try {
        Schedule schedule = generate(generated);
        const Placement::Kind kind = schedule.placement.kind();
        const bool allowed = kind == Placement::Kind::loop
                                 ? schedule.placement.chunks() <= request.max_chunks
                                 : kind == Placement::Kind::v && request.allow_v;
        bool fits = true;
        for (const RankResult& rank : simulate(schedule, request.costs).ranks) {
          fits &= rank.peak_activations <= request.activation_limit[0] + 1e-9;
        }
        if (allowed && fits) {
          schedules.push_back(schedule);
        }
      } catch (const UsageError&) {
        continue;  // refused for these numbers
      }
    }
  }
  return schedules;
}

TEST(Search, ResultsAreValidFitTheLimitAndAreNoWorseThanAnyFixedScheduleThatFits) {
  int compared = 0;
  for (const int ranks : {1, 2, 3, 6}) {
    for (const int microbatches : {1, 4, 13}) {
      for (const double weight_memory : {0.0, 0.4, 1.0, 1.6}) {
        for (const double limit : {1.0, 2.5, double(ranks), 2.0 * ranks}) {
          Costs costs = times(1.2, 1.1, 0.8, 0.1);
          costs.weight_memory = weight_memory;
          SearchRequest request = asked(ranks, microbatches, costs, std::max(limit, 1.0),
                                        ranks % 2 == 0 ? Objective::span : Objective::makespan);
          request.max_chunks = 3;
          request.allow_v = true;
          request.effort = 0.01;
          const std::string what =
              "p=" + std::to_string(ranks) + " m=" + std::to_string(microbatches) +
              " w=" + std::to_string(weight_memory) + " limit=" + std::to_string(limit);
          const SearchResult result = search(request);
          expect_sound(request, result, what);
          for (const Schedule& schedule : fixed_that_fit(request)) {
            EXPECT_LE(objective_of(request, result.simulation),
                      objective_of(request, simulate(schedule, costs)) + 1e-9)
                << what << ": " << schedule.name << " is better";
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(Search, WithoutTimeToSearchItStillReturnsTheBestFixedSchedule) {
  for (const double limit : {3.0, 6.0, 12.0}) {
    SearchRequest request = asked(6, 18, times(11.3, 11.2, 8.1, 0.4), limit);
    request.max_chunks = 2;
    request.allow_v = true;
    request.effort = 0;
    const SearchResult result = search(request);
    expect_sound(request, result, "limit=" + std::to_string(limit));
    for (const Schedule& schedule : fixed_that_fit(request)) {
      EXPECT_LE(result.simulation.span, simulate(schedule, request.costs).span + 1e-9)
          << schedule.name << " is better at limit " << limit;
    }
  }
}

// One rank has no bubble whatever it does.
TEST(Search, OfEqualSchedulesTakesTheOneThatHoldsLess) {
  SearchRequest request;
  request.microbatches = 16;
  EXPECT_EQ(search(request).simulation.ranks[0].peak_activations, 1);
}

// A schedule that is short by itself may wait long for its messages.
TEST(Search, AskedForTheLoweredFormItIsNoWorseThereThanAnyFixedSchedule) {
  for (const double latency : {0.1, 1.0}) {
    for (const int ranks : {3, 4}) {
      SearchRequest request;
      request.ranks = ranks;
      request.microbatches = 12;
      request.costs = times(1.5, 1, 2, latency);
      request.costs.transfer = latency / 4;
      request.allow_v = true;
      request.lowered = true;
      request.effort = 0.2;
      const SearchResult result = search(request);
      const double makespan = simulate(lower(result.schedule), request.costs).makespan;
      EXPECT_EQ(result.simulation.makespan, makespan);
      for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"}) {
        const Schedule fixed = generate(pipetrain::schedule::request(name, ranks, 12));
        EXPECT_LE(makespan, simulate(lower(fixed), request.costs).makespan * (1 + 1e-9))
            << name << " on " << ranks << " ranks, latency " << latency;
      }
    }
  }
}

TEST(Search, LoopsOfSeveralChunksKeepTheOrderOfMessages) {
  for (const double limit : {6.0, 8.0}) {
    for (int chunks = 2; chunks <= 4; ++chunks) {
      SearchRequest request = asked(4, 12, times(1, 1.1, 0.6, 0.02), limit, Objective::makespan);
      request.max_chunks = chunks;
      request.effort = 0.05;
      const SearchResult result = search(request);
      EXPECT_GT(result.schedule.placement.chunks(), 1) << "the case shows nothing";
      expect_sound(request, result, "v=" + std::to_string(chunks));
    }
  }
}

TEST(Search, FindsTheSameScheduleEveryTime) {
  SearchRequest request = asked(4, 8, times(1, 1.2, 0.7, 0.05), 3);
  request.allow_v = true;
  request.max_chunks = 2;
  request.effort = 0.1;
  EXPECT_EQ(to_csv(search(request).schedule), to_csv(search(request).schedule));
}

// Rows of the Zero Bubble paper's tables 5 and 9 (Qi et al. 2023), times in ms.
struct Row {
  int ranks;
  int microbatches;
  Costs costs;
  double weight_memory;
  double rate_at_p;
  double rate_at_2p;
};

const Row kSmall = {8, 24, times(18.522, 18.086, 9.337, 0.601), 0.366, 0.1585, 0.0433};
const Row kSmallLong = {8, 64, times(18.546, 18.097, 9.321, 0.762), 0.366, 0.0674, 0.0011};
const Row kLarge = {16, 48, times(11.347, 11.248, 8.132, 0.377), 0.432, 0.1397, 0.0031};
const Row kLargeLong = {16, 128, times(11.325, 11.308, 8.109, 0.378), 0.432, 0.0576, 0.0013};

double span_rate(const Row& row, double limit, double weight_memory, double effort,
                 bool allow_v = false) {
  SearchRequest request = asked(row.ranks, row.microbatches, row.costs, limit);
  request.costs.weight_memory = weight_memory;
  request.effort = effort;
  request.allow_v = allow_v;
  const SearchResult result = search(request);
  expect_sound(request, result, "m=" + std::to_string(row.microbatches));
  return result.simulation.bubble_fraction_span();
}

constexpr double kFourDigits = 5e-5;

void expect_row(const Row& row, double effort) {
  EXPECT_LE(span_rate(row, row.ranks, row.weight_memory, effort), row.rate_at_p + kFourDigits);
  EXPECT_LE(span_rate(row, row.ranks, 1, effort), row.rate_at_p + kFourDigits);
  EXPECT_LE(span_rate(row, 2 * row.ranks, row.weight_memory, effort), row.rate_at_2p + kFourDigits);
  EXPECT_LT(span_rate(row, row.ranks, 1, effort, true), row.rate_at_p / 2);
}

TEST(Search, ReachesTheZeroBubbleTableForTheSmallModel) {
  expect_row(kSmall, 0.1);
}

TEST(SweepSearch, ReachesTheZeroBubbleTable) {
  for (const Row& row : {kSmall, kSmallLong, kLarge, kLargeLong}) {
    expect_row(row, 1);
  }
}

SearchResult search_v(int ranks, int microbatches, double chunks_held, const Costs& chunk_times,
                      double effort) {
  SearchRequest request = asked(ranks, microbatches, chunk_times, chunks_held / 2);
  for (std::vector<double>* times :
       {&request.costs.forward, &request.costs.backward_input, &request.costs.backward_weight}) {
    times->at(0) *= 2;
  }
  request.allow_v = true;
  request.effort = effort;
  SearchResult result = search(request);
  expect_sound(request, result,
               "p=" + std::to_string(ranks) + " m=" + std::to_string(microbatches) +
                   " M=" + std::to_string(chunks_held));
  return result;
}

void expect_frontier(int ranks, int microbatches, int chunks_held, double effort) {
  const SearchResult result = search_v(ranks, microbatches, chunks_held, times(1, 1, 1), effort);
  EXPECT_LE(span_bubble(result.simulation), v_frontier(ranks, chunks_held) + 1e-9)
      << "p=" << ranks << " m=" << microbatches << " M=" << chunks_held;
  EXPECT_EQ(result.schedule.placement.kind(), Placement::Kind::v);
}

TEST(Search, ReachesTheMemoryFrontierOfTheVPlacement) {
  for (int held = 4; held <= 8; ++held) {
    expect_frontier(4, 8, held, 0.15);
  }
  // Odd limits need blocks whose hops differ from rank to rank.
  expect_frontier(6, 12, 7, 0.1);
  expect_frontier(6, 17, 9, 0.1);
  expect_frontier(8, 16, 13, 0.1);
  expect_frontier(12, 24, 17, 0.1);
}

TEST(SweepSearch, ReachesTheMemoryFrontierOfTheVPlacement) {
  for (int ranks = 4; ranks <= 12; ++ranks) {
    for (int held = 2 * ((ranks + 4) / 3); held <= 2 * ranks; ++held) {
      for (const int more : {0, 5}) {
        expect_frontier(ranks, 2 * ranks + more, held, 1);
      }
    }
  }
}

TEST(Search, BeatsZeroBubbleVWhenTimesDiffer) {
  EXPECT_LE(span_bubble(search_v(8, 16, 16, times(3, 4, 2), 0.1).simulation), 26 + 1e-9);
}

TEST(Search, PutsOffWeightGradientsWhereThatIsWorthItsMemory) {
  // 1f1b holds p - r activations on rank r, so later ranks have room for gradients put off.
  Costs costs = times(1, 1, 1);
  costs.weight_memory = 1.6;
  SearchRequest request = asked(6, 18, costs, 6);
  request.effort = 0.2;
  const SearchResult result = search(request);
  expect_sound(request, result, "w=1.6");
  const double fixed = run({"1f1b", 6, 18, 0, 0}, costs).span;
  EXPECT_LT(result.simulation.span, 0.94 * fixed);
}

TEST(Search, MeetsUnequalStagesAndUnequalLimits) {
  Costs costs = times(1, 1, 1, 0.1);
  costs.forward = {1, 2, 1, 1.5};
  costs.backward_input = {1.2, 2, 1, 1.5};
  SearchRequest request = asked(4, 10, costs, 4, Objective::makespan);
  request.activation_limit = {5, 2, 3, 1.5};
  request.allow_v = true;
  request.effort = 0.2;
  const SearchResult result = search(request);
  expect_sound(request, result, "unequal");
  SearchRequest tight = request;
  tight.activation_limit = {1.5};
  EXPECT_LT(result.simulation.makespan, search(tight).simulation.makespan);
}

TEST(Search, WithoutALimitTheSpanHasNoBubble) {
  SearchRequest request = asked(4, 16, times(1, 1, 1), 1);
  request.activation_limit.clear();
  request.effort = 0.3;
  const SearchResult result = search(request);
  EXPECT_NEAR(result.simulation.span, result.simulation.ideal, 1e-9);
}

template <typename Exception>
void expect_refused(const SearchRequest& request, const std::string& flag) {
  try {
    search(request);
    ADD_FAILURE() << "accepted, but " << flag << " is wrong";
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find(flag), std::string::npos) << error.what();
  }
}

TEST(Search, ALimitThatNoScheduleMeetsDoesNotFit) {
  expect_refused<DoesNotFit>(asked(4, 8, times(1, 1, 1), 0.5), "--activation-limit 0.5");
  SearchRequest request = asked(2, 8, times(1, 1, 1), 2);
  request.activation_limit = {2, 0};
  expect_refused<DoesNotFit>(request, "--activation-limit 0");
}

TEST(Search, BadNumbersAreUsageErrors) {
  expect_refused<UsageError>(asked(0, 8, times(1, 1, 1), 2), "--ranks");
  expect_refused<UsageError>(asked(4, 0, times(1, 1, 1), 2), "--microbatches");
  expect_refused<UsageError>(asked(4, 8, times(-1, 1, 1), 2), "--forward");
  SearchRequest request = asked(4, 8, times(1, 1, 1), 2);
  request.activation_limit = {2, 3};
  expect_refused<UsageError>(request, "--activation-limit");
  request = asked(4, 8, times(1, 1, 1), 2);
  request.max_chunks = 0;
  expect_refused<UsageError>(request, "--chunks");
  request = asked(4, 8, times(1, 1, 1), 2);
  request.costs.weight_memory = -1;
  expect_refused<UsageError>(request, "--weight-memory");
}

}  // namespace
}  // namespace pipetrain::schedule
