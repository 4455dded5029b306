#pragma once

#include <cublasLt.h>
#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda_fixture.h"

namespace pipetrain::test {

inline void ok(cublasStatus_t status,
               const std::source_location& where = std::source_location::current()) {
  EXPECT_EQ(status, CUBLAS_STATUS_SUCCESS)
      << cublasLtGetStatusName(status) << " at " << where.file_name() << ":" << where.line();
}

// For each type: cuBLASLt's name, the distance from 1 to the next larger value, and the type that a
// product of such elements is computed in.
template <class T>
struct Element;
template <>
struct Element<float> {
  static constexpr cudaDataType type = CUDA_R_32F;
  static constexpr double epsilon = 0x1p-23;
  using Computed = float;
};
template <>
struct Element<double> {
  static constexpr cudaDataType type = CUDA_R_64F;
  static constexpr double epsilon = 0x1p-52;
  using Computed = double;
};
template <>
struct Element<__nv_bfloat16> {
  static constexpr cudaDataType type = CUDA_R_16BF;
  static constexpr double epsilon = 0x1p-7;
  using Computed = float;
};

// D = alpha * op(A) * op(B) + beta * C (+ bias), D (m, n), all column-major.
struct Product {
  int m, n, k;
  bool transpose_a = false;
  bool transpose_b = false;
  double alpha = 1;
  double beta = 0;
  bool bias = false;
  bool separate_c = false;  // otherwise C is D
  int batch = 1;
  int padding = 0;  // of every leading dimension

  int a_rows() const { return transpose_a ? k : m; }
  int a_cols() const { return transpose_a ? m : k; }
  int b_rows() const { return transpose_b ? n : k; }
  int b_cols() const { return transpose_b ? k : n; }
  std::string text() const {
    return "m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " + std::to_string(k) +
           (transpose_a ? ", A^T" : "") + (transpose_b ? ", B^T" : "") + ", alpha " +
           std::to_string(alpha) + ", beta " + std::to_string(beta) + (bias ? ", bias" : "") +
           (separate_c ? ", C apart" : "") + ", batch " + std::to_string(batch) + ", padding " +
           std::to_string(padding);
  }
};

// Numbers in [-1, 1) that differ from place to place.
template <class T>
std::vector<T> numbers(size_t count, uint64_t seed) {
  std::vector<T> result;
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    result.push_back(T(float(int64_t(seed) >> 32) * 0x1p-31f));
  }
  return result;
}

class CublasLt : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    if (!IsSkipped()) {
      ok(cublasLtCreate(&handle_));
      stream_ = new_stream();
    }
  }
  void TearDown() override {
    Cuda::TearDown();
    if (handle_ != nullptr) {
      ok(cublasLtDestroy(handle_));
    }
  }

  cublasLtMatrixLayout_t layout(cudaDataType type, int rows, int cols, int ld, int batch = 1,
                                int64_t stride = 0) {
    cublasLtMatrixLayout_t made = nullptr;
    ok(cublasLtMatrixLayoutCreate(&made, type, uint64_t(rows), uint64_t(cols), ld));
    if (batch > 1) {
      ok(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                          sizeof batch));
      ok(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                          &stride, sizeof stride));
    }
    return made;
  }

  template <class T>
  T* on_device(const std::vector<T>& values) {
    T* pointer = device_memory<T>(values.size());
    ok(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return pointer;
  }
  template <class T>
  std::vector<T> on_host(const T* pointer, size_t count) {
    std::vector<T> values(count);
    ok(cudaStreamSynchronize(stream_));
    ok(cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

  // One product on the device; returns all of D's memory, `guard` elements past its end included.
  // A, B, C, D and bias are the operands' memory; C holds D's initial values too.
  template <class In, class Out>
  std::vector<Out> multiply(const Product& p, const std::vector<In>& a, const std::vector<In>& b,
                            const std::vector<Out>& c, const std::vector<Out>& bias,
                            size_t offset = 0) {
    using Computed = typename Element<In>::Computed;
    const int lda = p.a_rows() + p.padding, ldb = p.b_rows() + p.padding, ldd = p.m + p.padding;
    cublasLtMatmulDesc_t desc = nullptr;
    ok(cublasLtMatmulDescCreate(
        &desc, std::is_same_v<Computed, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
        Element<Computed>::type));
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      ok(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t(p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BIAS));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(on_device(bias)));
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(Element<Out>::type));
    }
    const cublasLtMatrixLayout_t a_layout =
        layout(Element<In>::type, p.a_rows(), p.a_cols(), lda, p.batch, int64_t(lda) * p.a_cols());
    const cublasLtMatrixLayout_t b_layout =
        layout(Element<In>::type, p.b_rows(), p.b_cols(), ldb, p.batch, int64_t(ldb) * p.b_cols());
    const cublasLtMatrixLayout_t d_layout =
        layout(Element<Out>::type, p.m, p.n, ldd, p.batch, int64_t(ldd) * p.n);

    cublasLtMatmulPreference_t preference = nullptr;
    ok(cublasLtMatmulPreferenceCreate(&preference));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      ok(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    const size_t workspace_bytes = size_t(4) << 20;
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_bytes));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(sizeof(In)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(sizeof(In)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(sizeof(Out)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(sizeof(Out)));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(handle_, desc, a_layout, b_layout, d_layout, d_layout,
                                      preference, 1, &found, &count));
    EXPECT_EQ(count, 1);
    EXPECT_LE(found.workspaceSize, workspace_bytes);

    // `offset` moves the operands within their memory.
    const auto shifted = [&](auto values) {
      values.insert(values.begin(), offset, values[0]);
      return on_device(values) + offset;
    };
    const In* a_device = shifted(a);
    const In* b_device = shifted(b);
    Out* d_device = shifted(c);
    const Out* c_device = p.separate_c ? shifted(c) : d_device;
    void* workspace = device_memory<char>(workspace_bytes);
    ok(cudaDeviceSynchronize());
    const Computed alpha = Computed(p.alpha), beta = Computed(p.beta);
    ok(cublasLtMatmul(handle_, desc, &alpha, a_device, a_layout, b_device, b_layout, &beta,
                      c_device, d_layout, d_device, d_layout, &found.algo, workspace,
                      workspace_bytes, stream_));
    const std::vector<Out> result = on_host(d_device, c.size());
    for (const cublasLtMatrixLayout_t made : {a_layout, b_layout, d_layout}) {
      ok(cublasLtMatrixLayoutDestroy(made));
    }
    ok(cublasLtMatmulPreferenceDestroy(preference));
    ok(cublasLtMatmulDescDestroy(desc));
    return result;
  }

  cublasLtHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace pipetrain::test
