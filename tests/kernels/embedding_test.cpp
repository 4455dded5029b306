#include "kernels/embedding.h"

#include "kernels/device_array.h"

namespace pipetrain::kernels {
namespace {

template <typename T>
struct Case {
  int rows, sequence, channels, vocabulary = 257;
  std::vector<double> tokens, wte, wpe, doutput;

  Case(int rows_, int sequence_, int channels_)
      : rows(rows_),
        sequence(sequence_),
        channels(channels_),
        wte(random_values<T>(size_t(vocabulary) * channels, 1)),
        wpe(random_values<T>(size_t(sequence) * channels, 2)),
        doutput(random_values<T>(size_t(rows) * channels, 3)) {
    std::mt19937 generator(4);
    for (int row = 0; row < rows; ++row) {
      tokens.push_back(row % 3 == 0 ? 7 : int(generator() % vocabulary));
    }
    tokens.front() = vocabulary - 1;
  }
  size_t token_element(int row, int c) const { return size_t(tokens[row]) * channels + c; }
  size_t position_element(int row, int c) const { return size_t(row % sequence) * channels + c; }
};

template <typename T>
class Embedding : public ::testing::Test {};
TYPED_TEST_SUITE(Embedding, ElementTypes);

TYPED_TEST(Embedding, ForwardIsTheRoundedSum) {
  using T = TypeParam;
  for (const auto& [rows, sequence, channels] : {std::tuple(1, 1, 8), {21, 7, 40}, {35, 5, 520}}) {
    const Case<T> c(rows, sequence, channels);
    std::vector<double> expected(c.doutput.size());
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < channels; ++i) {
        expected[size_t(row) * channels + i] =
            c.wte[c.token_element(row, i)] + c.wpe[c.position_element(row, i)];
      }
    }
    const DeviceArray<int> tokens(c.tokens);
    const DeviceArray<T> wte(c.wte), wpe(c.wpe), output(expected.size());
    const Stream stream;
    embedding_forward(output.get(), tokens.get(), wte.get(), wpe.get(), rows, sequence, channels,
                      stream.get());
    expect_within(output.values(), expected, scaled(expected, 2 * roundoff<T>), "output");
  }
}

TYPED_TEST(Embedding, BackwardAddsEveryRowToItsTokenAndPosition) {
  using T = TypeParam;
  using A = acc_t<T>;
  for (const auto& [rows, sequence, channels] : {std::tuple(1, 1, 8), {21, 7, 40}, {35, 5, 520}}) {
    const Case<T> c(rows, sequence, channels);
    std::vector<double> dwte = random_values<A>(c.wte.size(), 5);
    std::vector<double> dwpe = random_values<A>(c.wpe.size(), 6);
    const DeviceArray<A> dwte_output(dwte), dwpe_output(dwpe);
    std::vector<double> dwte_bound = scaled(dwte, 1), dwpe_bound = scaled(dwpe, 1);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < channels; ++i) {
        const double gradient = c.doutput[size_t(row) * channels + i];
        dwte[c.token_element(row, i)] += gradient;
        dwpe[c.position_element(row, i)] += gradient;
        dwte_bound[c.token_element(row, i)] += std::abs(gradient);
        dwpe_bound[c.position_element(row, i)] += std::abs(gradient);
      }
    }
    const DeviceArray<int> tokens(c.tokens);
    const DeviceArray<T> doutput(c.doutput);
    const Stream stream;
    embedding_backward(dwte_output.get(), dwpe_output.get(), doutput.get(), tokens.get(), rows,
                       sequence, channels, stream.get());
    expect_within(dwte_output.values(), dwte, scaled(dwte_bound, rows * roundoff<A>), "dwte");
    expect_within(dwpe_output.values(), dwpe, scaled(dwpe_bound, rows * roundoff<A>), "dwpe");
  }
}

// One addition after the other, so one exact answer in fp32, whatever the grid.
TYPED_TEST(Embedding, BackwardAddsInAscendingOrderOfRows) {
  using T = TypeParam;
  using A = acc_t<T>;
  const Case<T> c(50, 10, 264);
  std::vector<A> dwte(c.wte.size(), A(1)), dwpe(c.wpe.size(), A(1));
  for (int row = 0; row < c.rows; ++row) {
    for (int i = 0; i < c.channels; ++i) {
      const A gradient = A(c.doutput[size_t(row) * c.channels + i]);
      dwte[c.token_element(row, i)] += gradient;
      dwpe[c.position_element(row, i)] += gradient;
    }
  }
  const DeviceArray<int> tokens(c.tokens);
  const DeviceArray<T> doutput(c.doutput);
  const Stream stream;
  for (int run = 0; run < 3; ++run) {
    const DeviceArray<A> dwte_output(std::vector<double>(dwte.size(), 1.));
    const DeviceArray<A> dwpe_output(std::vector<double>(dwpe.size(), 1.));
    embedding_backward(dwte_output.get(), dwpe_output.get(), doutput.get(), tokens.get(), c.rows,
                       c.sequence, c.channels, stream.get());
    EXPECT_EQ(dwte_output.values(), std::vector<double>(dwte.begin(), dwte.end()));
    EXPECT_EQ(dwpe_output.values(), std::vector<double>(dwpe.begin(), dwpe.end()));
  }
}

}  // namespace
}  // namespace pipetrain::kernels
