#pragma once

#include <cublasLt.h>

#include "emulator/cublas_matmul.h"

// What cuBLASLt's opaque handles hold here.

struct cublasLtContext {
  int device = 0;
};

struct cublasLtMatrixLayoutOpaque {
  emulator::Matrix matrix;
  int batch = 1;
};

struct cublasLtMatmulDescOpaque {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType scale = CUDA_R_32F;
  cublasOperation_t op_a = CUBLAS_OP_N;
  cublasOperation_t op_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  // -1: as D
};

struct cublasLtMatmulPreferenceOpaque {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};
