// Where the emulator is stricter than cuBLASLt, and what only the emulator promises.

#ifdef PIPETRAIN_HOST

#include <cstring>
#include <thread>

#include "cublas_fixture.h"

namespace pipetrain::test {
namespace {

class CublasStrict : public CublasLt {
 protected:
  static constexpr int size = 16;

  void SetUp() override {
    CublasLt::SetUp();
    ok(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    square_ = layout(CUDA_R_32F, size, size, size);
    memory_ = device_memory<float>(4 * size * size);
  }
  void TearDown() override {
    ok(cublasLtMatrixLayoutDestroy(square_));
    ok(cublasLtMatmulDescDestroy(desc_));
    CublasLt::TearDown();
  }

  cublasStatus_t run(const float* a, const float* b, float* d,
                     const cublasLtMatmulAlgo_t* algo = nullptr, float beta = 0) {
    const float alpha = 1;
    return cublasLtMatmul(handle_, desc_, &alpha, a, square_, b, square_, &beta, d, square_, d,
                          square_, algo, nullptr, 0, stream_);
  }
  cublasLtMatmulAlgo_t algorithm(uint32_t alignment) {
    cublasLtMatmulPreference_t preference = nullptr;
    ok(cublasLtMatmulPreferenceCreate(&preference));
    ok(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                            &alignment, sizeof alignment));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(handle_, desc_, square_, square_, square_, square_,
                                      preference, 1, &result, &found));
    ok(cublasLtMatmulPreferenceDestroy(preference));
    return result.algo;
  }

  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t square_ = nullptr;
  float* memory_ = nullptr;
};

TEST_F(CublasStrict, SettingsThatAreNotImplementedAreErrors) {
  const uint32_t gelu = 32;
  EXPECT_EQ(
      cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu, sizeof gelu),
      CUBLAS_STATUS_NOT_SUPPORTED);
  const int32_t conjugate = 2;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &conjugate,
                                           sizeof conjugate),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, cublasLtMatmulDescAttributes_t(5), &conjugate,
                                           sizeof conjugate),
            CUBLAS_STATUS_INVALID_VALUE);
  const int32_t row_major = 1;
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(square_, CUBLASLT_MATRIX_LAYOUT_ORDER, &row_major,
                                             sizeof row_major),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(
      cublasLtMatrixLayoutSetAttribute(square_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &row_major, 8),
      CUBLAS_STATUS_INVALID_VALUE)
      << "a value of the wrong size";
}

TEST_F(CublasStrict, ShapesThatDoNotFitAndTypesThatDoNotGoTogetherAreErrors) {
  const float one = 1, zero = 0;
  const auto run_with = [&](cublasLtMatrixLayout_t a) {
    return cublasLtMatmul(handle_, desc_, &one, memory_, a, memory_, square_, &zero, memory_,
                          square_, memory_, square_, nullptr, nullptr, 0, stream_);
  };
  const cublasLtMatrixLayout_t wide = layout(CUDA_R_32F, size, size + 1, size);
  const cublasLtMatrixLayout_t overlapping = layout(CUDA_R_32F, size, size, size - 1);
  const cublasLtMatrixLayout_t empty = layout(CUDA_R_32F, size, 0, size);
  const cublasLtMatrixLayout_t half = layout(CUDA_R_16BF, size, size, size);
  EXPECT_EQ(run_with(wide), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run_with(overlapping), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run_with(empty), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run_with(half), CUBLAS_STATUS_NOT_SUPPORTED);
  for (const cublasLtMatrixLayout_t made : {wide, overlapping, empty, half}) {
    ok(cublasLtMatrixLayoutDestroy(made));
  }
}

TEST_F(CublasStrict, OperandsMustLieInOneAllocationOfTheDevice) {
  std::vector<float> host(size * size);
  EXPECT_EQ(run(host.data(), memory_, memory_ + size * size), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(memory_, memory_, memory_ + 3 * size * size + 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(memory_, nullptr, memory_), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(memory_, memory_, memory_ + 3 * size * size), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasStrict, AnAlgorithmHoldsForItsShapeAndItsAlignment) {
  const cublasLtMatmulAlgo_t aligned = algorithm(256), loose = algorithm(4);
  float* const out = memory_ + 2 * size * size;
  EXPECT_EQ(run(memory_ + 4, memory_, out, &aligned), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(memory_ + 1, memory_, out, &aligned), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(run(memory_ + 1, memory_, out, &loose), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(memory_ + 1, memory_, out), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(reinterpret_cast<float*>(reinterpret_cast<char*>(memory_) + 2), memory_, out),
            CUBLAS_STATUS_NOT_SUPPORTED);
  const int32_t transpose = CUBLAS_OP_T;
  ok(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                    sizeof transpose));
  EXPECT_EQ(run(memory_, memory_, out, &aligned), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasStrict, TheNullStreamAndAStreamOfAnotherDeviceAreErrors) {
  stream_ = nullptr;
  EXPECT_EQ(run(memory_, memory_, memory_ + 2 * size * size), CUBLAS_STATUS_INVALID_VALUE);
  ok(cudaSetDevice(1));
  stream_ = new_stream();
  EXPECT_EQ(run(memory_, memory_, memory_ + 2 * size * size), CUBLAS_STATUS_INVALID_VALUE);
  ok(cudaSetDevice(0));
}

// Every product that training needs has a BIAS in the type of D; cuBLASLt documents fewer.
TEST_F(CublasStrict, ABiasWorksInEveryCombinationOfTypes) {
  const Product p{8, 4, 16, false, false, 1, 0, true};
  const auto check = [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    const auto a = numbers<In>(size_t(p.m * p.k), 1);
    const auto b = numbers<In>(size_t(p.k * p.n), 2);
    const auto c = numbers<Out>(size_t(p.m * p.n), 3);
    const auto with = multiply<In, Out>(p, a, b, c, std::vector<Out>(size_t(p.m), Out(2.0f)));
    const auto without = multiply<In, Out>(p, a, b, c, std::vector<Out>(size_t(p.m), Out(0.0f)));
    for (size_t i = 0; i < with.size(); ++i) {
      EXPECT_NEAR(float(with[i]), float(without[i]) + 2,
                  8 * std::max(Element<Out>::epsilon, Element<float>::epsilon));
    }
  };
  check(float(), float());
  check(double(), double());
  check(__nv_bfloat16(), float());
  check(__nv_bfloat16(), __nv_bfloat16());
}

TEST_F(CublasStrict, BitsDoNotDependOnAddresses) {
  for (const int k : {7, 32, 100}) {
    const Product p{33, 20, k, true, false, 1, 1, true};
    const auto a = numbers<float>(size_t(p.m * p.k), 1);
    const auto b = numbers<float>(size_t(p.k * p.n), 2);
    const auto c = numbers<float>(size_t(p.m * p.n), 3);
    const auto bias = numbers<float>(size_t(p.m), 4);
    const std::vector<float> first = multiply<float, float>(p, a, b, c, bias);
    for (size_t offset = 1; offset < 20; offset += 3) {
      const std::vector<float> moved = multiply<float, float>(p, a, b, c, bias, offset);
      EXPECT_EQ(std::memcmp(first.data(), moved.data(), first.size() * sizeof(float)), 0)
          << p.text() << ", moved by " << offset << " elements";
    }
  }
}

TEST_F(CublasStrict, EightStreamsAtOnceComputeWhatOneDoes) {
  constexpr int streams = 8, repeats = 20;
  constexpr int m = 96, n = 64, k = 80;
  const float one = 1, zero = 0;
  const float* a = on_device(numbers<float>(m * k, 1));
  const float* b = on_device(numbers<float>(k * n, 2));
  const cublasLtMatrixLayout_t a_layout = layout(CUDA_R_32F, m, k, m);
  const cublasLtMatrixLayout_t b_layout = layout(CUDA_R_32F, k, n, k);
  const cublasLtMatrixLayout_t d_layout = layout(CUDA_R_32F, m, n, m);
  std::vector<float*> results;
  for (int i = 0; i < streams; ++i) {
    results.push_back(device_memory<float>(size_t(repeats) * m * n));
  }
  ok(cudaDeviceSynchronize());
  for (int i = 0; i < streams; ++i) {
    const cudaStream_t stream = new_stream();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      float* d = results[size_t(i)] + size_t(repeat) * m * n;
      ok(cublasLtMatmul(handle_, desc_, &one, a, a_layout, b, b_layout, &zero, d, d_layout, d,
                        d_layout, nullptr, nullptr, 0, stream));
    }
  }
  ok(cudaDeviceSynchronize());
  const std::vector<float> first = on_host(results[0], m * n);
  for (float* result : results) {
    const std::vector<float> all = on_host(result, size_t(repeats) * m * n);
    for (size_t repeat = 0; repeat < repeats; ++repeat) {
      ASSERT_EQ(std::memcmp(first.data(), all.data() + repeat * m * n, m * n * sizeof(float)), 0);
    }
  }
  for (const cublasLtMatrixLayout_t made : {a_layout, b_layout, d_layout}) {
    ok(cublasLtMatrixLayoutDestroy(made));
  }
}

}  // namespace
}  // namespace pipetrain::test

#endif  // PIPETRAIN_HOST
