#pragma once

// The element types that the emulator knows, numbered as in CUDA's library_types.h.

typedef enum cudaDataType_t {
  CUDA_R_32F = 0,
  CUDA_R_64F = 1,
  CUDA_R_16BF = 14,
} cudaDataType;
