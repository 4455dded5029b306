#include "kernels/attention.h"

#include "kernels/device_array.h"

namespace pipetrain::kernels {
namespace {

// Causal attention in double, with bounds on the error of the kernels: each bound follows the steps
// that are taken, from rounded inputs to rounded outputs. Gradients are those of sum(output *
// dout).
template <typename T>
struct Reference {
  AttentionShape shape;
  std::vector<double> output, output_bound, lse, lse_bound, dqkv, dqkv_bound;

  Reference(const AttentionShape& s, const std::vector<double>& qkv,
            const std::vector<double>& dout)
      : shape(s),
        output(dout.size()),
        output_bound(dout.size()),
        lse(size_t(s.batch) * s.heads * s.sequence),
        lse_bound(lse.size()),
        dqkv(qkv.size()),
        dqkv_bound(qkv.size()) {
    for (int b = 0; b < s.batch; ++b) {
      for (int h = 0; h < s.heads; ++h) {
        for (int t = 0; t < s.sequence; ++t) {
          row(b, h, t, qkv, dout);
        }
      }
    }
    for (size_t i = 0; i < dqkv.size(); ++i) {
      dqkv_bound[i] += roundoff<T> * std::abs(dqkv[i]);
    }
  }

 private:
  // Element i of head h of q (part 0), k (1) or v (2).
  size_t element(int part, int b, int h, int t, int i) const {
    return (size_t(b) * shape.sequence + t) * 3 * shape.channels() + part * shape.channels() +
           h * shape.head_size + i;
  }

  void row(int b, int h, int t, const std::vector<double>& qkv, const std::vector<double>& dout) {
    const double u = roundoff<acc_t<T>>;
    const double scale = 1 / std::sqrt(double(shape.head_size));
    const int count = t + 1;
    const int size = shape.head_size;
    const size_t out = (size_t(b) * shape.sequence + t) * shape.channels() + h * size;

    std::vector<double> score(count), score_error(count), p(count), p_error(count);
    double largest = -INFINITY, worst_score = 0;
    for (int j = 0; j < count; ++j) {
      for (int i = 0; i < size; ++i) {
        const double term = scale * qkv[element(0, b, h, t, i)] * qkv[element(1, b, h, j, i)];
        score[j] += term;
        score_error[j] += u * (size + 4) * std::abs(term);
      }
      largest = std::max(largest, score[j]);
      worst_score = std::max(worst_score, score_error[j]);
    }
    double sum = 0, spread = 0;
    for (int j = 0; j < count; ++j) {
      sum += std::exp(score[j] - largest);
      spread = std::max(spread, largest - score[j]);
    }
    const size_t row_index = (size_t(b) * shape.heads + h) * shape.sequence + t;
    lse[row_index] = largest + std::log(sum);
    const double sum_error = 2 * worst_score + u * (10 + spread + count);
    lse_bound[row_index] = worst_score + sum_error + 2 * u * (std::abs(lse[row_index]) + spread);

    // Relative to p: of the exponential, the normalisation and, where p goes into a product, its
    // rounding to T.
    const double p_relative = worst_score + sum_error + lse_bound[row_index] +
                              u * (12 + spread + std::abs(lse[row_index]));
    std::vector<double> dp(count), dp_error(count);
    double mean = 0, mean_error = 0;
    for (int j = 0; j < count; ++j) {
      p[j] = std::exp(score[j] - lse[row_index]);
      for (int i = 0; i < size; ++i) {
        const double v = qkv[element(2, b, h, j, i)];
        const double d = dout[out + i];
        output[out + i] += p[j] * v;
        output_bound[out + i] += std::abs(p[j] * v) * (p_relative + roundoff<T> + u * count);
        dqkv[element(2, b, h, j, i)] += p[j] * d;
        dqkv_bound[element(2, b, h, j, i)] +=
            std::abs(p[j] * d) * (p_relative + roundoff<T> + u * shape.sequence);
        dp[j] += d * v;
        dp_error[j] += u * (size + 2) * std::abs(d * v);
      }
      mean += p[j] * dp[j];
      mean_error += p[j] * (dp_error[j] + std::abs(dp[j]) * (p_relative + u * count));
    }
    for (int j = 0; j < count; ++j) {
      const double ds = p[j] * (dp[j] - mean);
      const double ds_error =
          p[j] * (dp_error[j] + mean_error + (std::abs(dp[j]) + std::abs(mean)) * 2 * u) +
          std::abs(ds) * (p_relative + roundoff<T>);
      for (int i = 0; i < size; ++i) {
        const size_t q = element(0, b, h, t, i);
        const size_t k = element(1, b, h, j, i);
        dqkv[q] += scale * ds * qkv[k];
        dqkv[k] += scale * ds * qkv[q];
        const double error = ds_error + std::abs(ds) * u * (shape.sequence + 2);
        dqkv_bound[q] += scale * std::abs(qkv[k]) * error;
        dqkv_bound[k] += scale * std::abs(qkv[q]) * error;
      }
    }
    for (int i = 0; i < size; ++i) {
      output_bound[out + i] += roundoff<T> * std::abs(output[out + i]);
    }
  }
};

template <typename T>
class Attention : public ::testing::Test {
 protected:
  DeviceArray<char> matmul_workspace_{matmul_workspace_bytes() + 1};
  Matmul matmul_{reinterpret_cast<std::byte*>(matmul_workspace_.get())};
};
TYPED_TEST_SUITE(Attention, ElementTypes);

TYPED_TEST(Attention, ForwardAndBackwardAreWithinRoundingOfTheReference) {
  using T = TypeParam;
  using A = acc_t<T>;
  for (const AttentionShape& shape : {AttentionShape{1, 1, 1, 8}, AttentionShape{2, 5, 3, 16},
                                      AttentionShape{2, 32, 2, 8}, AttentionShape{1, 67, 2, 24}}) {
    const size_t hidden = size_t(shape.batch) * shape.sequence * shape.channels();
    const std::vector<double> qkv_values = random_values<T>(3 * hidden, 1);
    const std::vector<double> dout_values = random_values<T>(hidden, 2);
    const Reference<T> r(shape, qkv_values, dout_values);

    const DeviceArray<T> qkv(qkv_values), dout(dout_values), output(hidden);
    const DeviceArray<A> lse(r.lse.size());
    const DeviceArray<char> workspace(attention_workspace_bytes<T>(shape));
    auto* const work = reinterpret_cast<std::byte*>(workspace.get());
    const Stream stream;
    attention_forward(output.get(), lse.get(), qkv.get(), shape, this->matmul_, work, stream.get());
    expect_within(output.values(), r.output, r.output_bound, "output");
    expect_within(lse.values(), r.lse, r.lse_bound, "lse");
    EXPECT_EQ(qkv.values(), qkv_values);

    attention_backward(qkv.get(), dout.get(), lse.get(), shape, this->matmul_, work, stream.get());
    expect_within(qkv.values(), r.dqkv, r.dqkv_bound, "dqkv");
    const std::vector<char> bits = qkv.bits();
    qkv.upload(qkv_values);
    attention_backward(qkv.get(), dout.get(), lse.get(), shape, this->matmul_, work, stream.get());
    EXPECT_EQ(qkv.bits(), bits) << "a second run";
  }
}

TYPED_TEST(Attention, AnOutputDoesNotDependOnWhatComesAfter) {
  using T = TypeParam;
  const AttentionShape shape{1, 9, 2, 8};
  const size_t hidden = size_t(shape.sequence) * shape.channels();
  std::vector<double> qkv_values = random_values<T>(3 * hidden, 1);
  const DeviceArray<T> qkv(qkv_values), output(hidden);
  const DeviceArray<acc_t<T>> lse(size_t(shape.heads) * shape.sequence);
  const DeviceArray<char> workspace(attention_workspace_bytes<T>(shape));
  auto* const work = reinterpret_cast<std::byte*>(workspace.get());
  const Stream stream;
  attention_forward(output.get(), lse.get(), qkv.get(), shape, this->matmul_, work, stream.get());
  const std::vector<double> before = output.values();
  const int changed = 6;
  for (size_t i = size_t(changed) * 3 * shape.channels(); i < qkv_values.size(); ++i) {
    qkv_values[i] = 3;
  }
  qkv.upload(qkv_values);
  attention_forward(output.get(), lse.get(), qkv.get(), shape, this->matmul_, work, stream.get());
  const std::vector<double> after = output.values();
  for (size_t i = 0; i < hidden; ++i) {
    if (i / shape.channels() < changed) {
      EXPECT_EQ(after[i], before[i]) << i;
    }
  }
  EXPECT_NE(after, before);
}

// Nothing is chosen or allocated inside a step: all plans can be made before it.
TYPED_TEST(Attention, PlansAreWholeBeforeTheFirstUse) {
  using T = TypeParam;
  const DeviceArray<char> matmul_workspace(matmul_workspace_bytes());
  Matmul matmul(reinterpret_cast<std::byte*>(matmul_workspace.get()));
  const AttentionShape shape{1, 1200, 3, 8};  // two groups of heads, of 2 and of 1
  attention_plan<T>(shape, matmul);
  const size_t plans = matmul.plans();
  EXPECT_GE(plans, 12u);

  const size_t hidden = size_t(shape.batch) * shape.sequence * shape.channels();
  const DeviceArray<T> qkv(3 * hidden), dout(hidden), output(hidden);
  const DeviceArray<acc_t<T>> lse(size_t(shape.batch) * shape.heads * shape.sequence);
  const DeviceArray<char> workspace(attention_workspace_bytes<T>(shape));
  auto* const work = reinterpret_cast<std::byte*>(workspace.get());
  const Stream stream;
  attention_forward(output.get(), lse.get(), qkv.get(), shape, matmul, work, stream.get());
  attention_backward(qkv.get(), dout.get(), lse.get(), shape, matmul, work, stream.get());
  stream.synchronize();
  EXPECT_EQ(matmul.plans(), plans);
}

// Long sequences make several groups of heads, the last one smaller; each head must be as if alone.
TEST(AttentionGroups, DoNotShowInTheResult) {
  using T = float;
  const DeviceArray<char> matmul_workspace(matmul_workspace_bytes() + 1);
  Matmul matmul(reinterpret_cast<std::byte*>(matmul_workspace.get()));
  const AttentionShape all{1, 1023, 5, 8}, one{1, 1023, 1, 8};
  EXPECT_LT(attention_workspace_bytes<T>(all), 5 * attention_workspace_bytes<T>(one));
  const size_t hidden = size_t(all.sequence) * all.channels();
  const std::vector<double> values = random_values<T>(3 * hidden, 1);
  const std::vector<double> dout_values = random_values<T>(hidden, 2);
  const Stream stream;
  const auto run = [&](const AttentionShape& shape, const std::vector<double>& qkv_values,
                       const std::vector<double>& gradient) {
    const DeviceArray<T> qkv(qkv_values), dout(gradient), output(gradient.size());
    const DeviceArray<acc_t<T>> lse(size_t(shape.heads) * shape.sequence);
    const DeviceArray<char> workspace(attention_workspace_bytes<T>(shape));
    auto* const work = reinterpret_cast<std::byte*>(workspace.get());
    attention_forward(output.get(), lse.get(), qkv.get(), shape, matmul, work, stream.get());
    std::vector<double> result = output.values();
    attention_backward(qkv.get(), dout.get(), lse.get(), shape, matmul, work, stream.get());
    const std::vector<double> dqkv = qkv.values();
    result.insert(result.end(), dqkv.begin(), dqkv.end());
    return result;
  };
  // Columns of head h in rows of `width` blocks of channels.
  const auto head = [&](const std::vector<double>& from, int h, int blocks) {
    std::vector<double> result;
    for (size_t row = 0; row < from.size() / all.channels(); ++row) {
      for (int i = 0; i < all.head_size; ++i) {
        result.push_back(from[row * all.channels() + h * all.head_size + i]);
      }
    }
    EXPECT_EQ(result.size() % blocks, 0u);
    return result;
  };
  const std::vector<double> together = run(all, values, dout_values);
  for (int h = 0; h < all.heads; ++h) {
    const std::vector<double> alone = run(one, head(values, h, 3), head(dout_values, h, 1));
    const std::vector<double> expected = head(together, h, 4);
    ASSERT_EQ(alone.size(), expected.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_NEAR(alone[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << h << " " << i;
    }
  }
}

#ifdef PIPETRAIN_HOST
TEST(AttentionGradient, AgreesWithFiniteDifferences) {
  for (const int sequence : {1, 5}) {
    const AttentionShape shape{1, sequence, 2, 8};
    const size_t hidden = size_t(sequence) * shape.channels();
    const std::vector<double> qkv_values = random_values<double>(3 * hidden, 1);
    const std::vector<double> dout_values = random_values<double>(hidden, 2);
    const DeviceArray<double> qkv(qkv_values), dqkv(qkv_values), dout(dout_values), output(hidden);
    const DeviceArray<double> lse(size_t(shape.heads) * sequence);
    const DeviceArray<char> workspace(attention_workspace_bytes<double>(shape));
    auto* const work = reinterpret_cast<std::byte*>(workspace.get());
    Matmul matmul(nullptr);
    const Stream stream;
    const auto forward = [&] {
      attention_forward(output.get(), lse.get(), qkv.get(), shape, matmul, work, stream.get());
      return dot(output.values(), dout_values);
    };
    forward();
    attention_backward(dqkv.get(), dout.get(), lse.get(), shape, matmul, work, stream.get());
    expect_gradient(qkv, dqkv.values(), forward, "dqkv");
  }
}
#endif

}  // namespace
}  // namespace pipetrain::kernels
