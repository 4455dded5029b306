#include "kernels/adamw.h"
#include "kernels/device_array.h"
#include "kernels/optimizer_step.h"
#include "kernels/sum_of_squares.h"

namespace pipetrain::kernels {
namespace {

// OptimizerScalars in device memory.
template <typename A>
class DeviceScalars {
 public:
  explicit DeviceScalars(const OptimizerScalars<A>& scalars = {})
      : memory_(sizeof(OptimizerScalars<A>)) {
    upload(scalars);
  }
  OptimizerScalars<A>* get() const { return reinterpret_cast<OptimizerScalars<A>*>(memory_.get()); }
  void upload(const OptimizerScalars<A>& scalars) const {
    check(cudaMemcpy(get(), &scalars, sizeof(scalars), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  OptimizerScalars<A> download() const {
    OptimizerScalars<A> scalars;
    const std::vector<char> bits = memory_.bits();
    std::memcpy(&scalars, bits.data(), sizeof(scalars));
    return scalars;
  }

 private:
  DeviceArray<char> memory_;
};

// ---- sums of squares

template <typename A>
class Optimizer : public ::testing::Test {};
TYPED_TEST_SUITE(Optimizer, AccumulatorTypes);

TYPED_TEST(Optimizer, SquaresAreSummedPerBlock) {
  using A = TypeParam;
  for (const size_t n : {size_t(8), norm_block, 2 * norm_block + 1000}) {
    const std::vector<double> values = random_values<A>(n, 1);
    std::vector<double> sums(norm_blocks(n));
    for (size_t i = 0; i < n; ++i) {
      sums[i / norm_block] += values[i] * values[i];
    }
    const DeviceArray<A> gradient(values), block_sums(sums.size());
    const Stream stream;
    sum_of_squares(block_sums.get(), gradient.get(), n, stream.get());
    expect_within(block_sums.values(), sums, scaled(sums, norm_block * roundoff<A>), "block sums");
  }
}

// So that a norm does not depend on how a tensor is cut into shards.
TYPED_TEST(Optimizer, ABlockSumDependsOnItsBlockAlone) {
  using A = TypeParam;
  const size_t n = 3 * norm_block + 8;
  const DeviceArray<A> gradient(random_values<A>(n, 1)), whole(4), shards(4);
  const Stream stream;
  sum_of_squares(whole.get(), gradient.get(), n, stream.get());
  sum_of_squares(shards.get(), gradient.get(), norm_block, stream.get());
  sum_of_squares(shards.get() + 1, gradient.get() + norm_block, n - norm_block, stream.get());
  EXPECT_EQ(shards.bits(), whole.bits());
}

// ---- the step

template <typename A>
struct Gathered {
  DeviceArray<A> values;
  DeviceArray<int> blocks, losses, stops;

  Gathered(const std::vector<double>& v, const std::vector<double>& block_positions,
           const std::vector<double>& loss_positions, const std::vector<double>& stop_positions)
      : values(v), blocks(block_positions), losses(loss_positions), stops(stop_positions) {}
  GatheredStep<A> get() const {
    return {values.get(),        blocks.get(), int(blocks.count()), losses.get(),
            int(losses.count()), stops.get(),  int(stops.count())};
  }
};

TYPED_TEST(Optimizer, StepTakesNormLossAndStopFromTheirPositions) {
  using A = TypeParam;
  const Gathered<A> gathered({0.25, 9, 0, 0.5, 16, 0, 0.125}, {4, 1}, {0, 3, 6}, {2, 5});
  const DeviceScalars<A> scalars({.learning_rate = A(0.5)});
  const Stream stream;
  optimizer_step(scalars.get(), gathered.get(), 1, 0.9, 0.95, stream.get());
  OptimizerScalars<A> s = scalars.download();
  EXPECT_EQ(s.norm, 5);
  EXPECT_EQ(s.loss, 0.875);
  EXPECT_NEAR(s.clip, 1 / (5 + 1e-6), 2 * roundoff<A>);
  EXPECT_EQ(s.learning_rate, 0.5);
  EXPECT_EQ(s.step, 1);
  EXPECT_NEAR(s.bias_correction1, 0.1, 2 * roundoff<A>);
  EXPECT_NEAR(s.bias_correction2, 0.05, 2 * roundoff<A>);
  EXPECT_EQ(s.skip, 0);
  EXPECT_EQ(s.stop, 0);

  gathered.values.upload({0.25, 9, 0, 0.5, 16, 1, 0.125});
  optimizer_step(scalars.get(), gathered.get(), 7, 0.9, 0.95, stream.get());
  s = scalars.download();
  EXPECT_EQ(s.clip, 1) << "below the threshold";
  EXPECT_EQ(s.stop, 1);
  EXPECT_EQ(s.step, 2);
  EXPECT_NEAR(s.bias_correction1, 1 - 0.81, 2 * roundoff<A>);
  optimizer_step(scalars.get(), gathered.get(), 0, 0.9, 0.95, stream.get());
  EXPECT_EQ(scalars.download().clip, 1) << "no threshold";
}

TYPED_TEST(Optimizer, StepIsSkippedAndNotCountedWhenNormOrLossIsNotFinite) {
  using A = TypeParam;
  const Stream stream;
  for (const double bad : {double(NAN), double(INFINITY)}) {
    for (const size_t position : {0, 1}) {
      std::vector<double> values = {4, 1};
      values[position] = bad;
      const Gathered<A> gathered(values, {0}, {1}, {});
      const DeviceScalars<A> scalars({.clip = A(0.5), .bias_correction1 = A(0.25), .step = 3});
      optimizer_step(scalars.get(), gathered.get(), 1, 0.9, 0.95, stream.get());
      OptimizerScalars<A> s = scalars.download();
      EXPECT_EQ(s.skip, 1);
      EXPECT_EQ(s.step, 3);
      EXPECT_EQ(s.bias_correction1, 0.25);
      EXPECT_FALSE(std::isfinite(position == 0 ? s.norm : s.loss));

      gathered.values.upload({4, 1});
      optimizer_step(scalars.get(), gathered.get(), 1, 0.9, 0.95, stream.get());
      s = scalars.download();
      EXPECT_EQ(s.skip, 0);
      EXPECT_EQ(s.step, 4);
    }
  }
}

TYPED_TEST(Optimizer, NormDoesNotDependOnWhereTheSumsLie) {
  using A = TypeParam;
  const size_t blocks = 1000;
  const std::vector<double> sums = scaled(random_values<A>(blocks, 1, 1e3), 1);
  std::vector<double> positions(blocks), moved(blocks), moved_positions(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    positions[i] = double(i);
    moved_positions[i] = double(i * 377 % blocks);
    moved[size_t(moved_positions[i])] = sums[i];
  }
  const Gathered<A> straight(sums, positions, {0}, {}), scattered(moved, moved_positions, {0}, {});
  const DeviceScalars<A> a, b;
  const Stream stream;
  optimizer_step(a.get(), straight.get(), 0, 0.9, 0.95, stream.get());
  optimizer_step(b.get(), scattered.get(), 0, 0.9, 0.95, stream.get());
  EXPECT_EQ(a.download().norm, b.download().norm);
  double sum = 0;
  for (const double value : sums) {
    sum += value;
  }
  EXPECT_NEAR(a.download().norm, std::sqrt(sum), 2 * roundoff<A> * std::sqrt(sum) + 1e-12);
}

// ---- AdamW

template <typename T>
class Adamw : public ::testing::Test {};
TYPED_TEST_SUITE(Adamw, ElementTypes);

// The formulas of torch.optim.AdamW's documentation, several steps, against an independent moment
// of each element in double.
TYPED_TEST(Adamw, FollowsTheReferenceOverSeveralSteps) {
  using T = TypeParam;
  using A = acc_t<T>;
  constexpr bool separate = !std::is_same_v<T, A>;
  const size_t n = 1000;
  const AdamwSettings settings{.decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
  std::vector<double> p = random_values<A>(n, 1), m(n), v(n);
  const DeviceArray<A> master(p), moment1(m), moment2(v);
  const DeviceArray<T> weight(p);
  const Stream stream;
  std::vector<double> bound(n);
  for (int step = 1; step <= 4; ++step) {
    const double learning_rate = 0.01 * step, clip = 0.5;
    const std::vector<double> gradient_values = random_values<A>(n, 10 + step, step == 3 ? 0 : 1);
    for (size_t i = 0; i < n; ++i) {
      const double g = clip * gradient_values[i];
      m[i] = settings.beta1 * m[i] + (1 - settings.beta1) * g;
      v[i] = settings.beta2 * v[i] + (1 - settings.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(settings.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(settings.beta2, step));
      const double update = learning_rate * m_hat / (std::sqrt(v_hat) + settings.epsilon);
      p[i] = p[i] - learning_rate * settings.decay * p[i] - update;
      // The moments may cancel, but never lose more than a few roundoffs of their history, which
      // is at most of the size of the largest update.
      bound[i] += roundoff<A> * (4 * std::abs(p[i]) + 64 * step * learning_rate);
    }
    const DeviceScalars<A> scalars({.learning_rate = A(learning_rate),
                                    .clip = A(clip),
                                    .bias_correction1 = A(1 - std::pow(settings.beta1, step)),
                                    .bias_correction2 = A(1 - std::pow(settings.beta2, step)),
                                    .step = step});
    const DeviceArray<A> gradient(gradient_values);
    adamw(separate ? weight.get() : reinterpret_cast<T*>(master.get()), master.get(), moment1.get(),
          moment2.get(), gradient.get(), n, settings, scalars.get(), stream.get());
    expect_within(master.values(), p, bound, "master weights");
    if (separate) {
      EXPECT_EQ(weight.values(), rounded<T>(master.values()));
    }
  }
}

TYPED_TEST(Adamw, ASkippedStepChangesNothing) {
  using T = TypeParam;
  using A = acc_t<T>;
  const size_t n = 64;
  const DeviceArray<A> master(random_values<A>(n, 1)), moment1(random_values<A>(n, 2)),
      moment2(random_values<A>(n, 3)), gradient(std::vector<double>(n, NAN));
  const DeviceArray<T> weight(random_values<T>(n, 4));
  const std::vector<std::vector<char>> before = {master.bits(), moment1.bits(), moment2.bits(),
                                                 weight.bits()};
  const DeviceScalars<A> scalars({.learning_rate = 1, .skip = 1});
  const Stream stream;
  adamw(weight.get(), master.get(), moment1.get(), moment2.get(), gradient.get(), n, {},
        scalars.get(), stream.get());
  EXPECT_EQ(before, (std::vector<std::vector<char>>{master.bits(), moment1.bits(), moment2.bits(),
                                                    weight.bits()}));
}

// So that shards give the bits of the whole.
TYPED_TEST(Adamw, AnElementDoesNotDependOnItsPosition) {
  using T = TypeParam;
  using A = acc_t<T>;
  const size_t n = norm_block + 72;
  const std::vector<double> p = random_values<A>(n, 1), g = random_values<A>(n, 2),
                            m = random_values<A>(n, 3), v = scaled(random_values<A>(n, 4), 1);
  const DeviceScalars<A> scalars(
      {.learning_rate = A(0.1), .bias_correction1 = A(0.3), .bias_correction2 = A(0.2)});
  const DeviceArray<A> gradient(g);
  const Stream stream;
  const auto run = [&](std::vector<size_t> cuts) {
    const DeviceArray<A> master(p), moment1(m), moment2(v);
    const DeviceArray<T> weight(p);
    size_t start = 0;
    for (const size_t end : cuts) {
      adamw(weight.get() + start, master.get() + start, moment1.get() + start,
            moment2.get() + start, gradient.get() + start, end - start, {.decay = 0.1},
            scalars.get(), stream.get());
      start = end;
    }
    return std::vector<std::vector<char>>{master.bits(), moment1.bits(), moment2.bits(),
                                          weight.bits()};
  };
  const auto whole = run({n});
  EXPECT_EQ(run({norm_block, n}), whole);
  EXPECT_EQ(run({8, 48, 1000, norm_block, norm_block + 8, n}), whole);
}

}  // namespace
}  // namespace pipetrain::kernels
