#pragma once

#include <cublas_api.h>

#include <cstddef>
#include <cstdint>

// One checked matrix product, as cublasLtMatmul hands it to a stream.
namespace emulator {

struct Matrix {
  cudaDataType type = CUDA_R_32F;
  size_t rows = 0;
  size_t cols = 0;
  size_t ld = 0;
  int64_t batch_stride = 0;  // in elements

  bool operator==(const Matrix&) const = default;
};

// What a matmul is apart from its operands; everything that an algorithm is chosen for.
struct MatmulShape {
  size_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool has_bias = false;
  int batch = 1;
  Matrix a, b, c, d;

  bool operator==(const MatmulShape&) const = default;
};

struct MatmulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // read only when beta is not 0
  void* d = nullptr;
  const void* bias = nullptr;
  double alpha = 1;
  double beta = 0;
};

size_t element_bytes(cudaDataType type);

// Computes on the calling thread, with scratch that this thread keeps.
void matmul(const MatmulShape& shape, const MatmulOperands& operands);

}  // namespace emulator
