// cuBLASLt's checks of a product. What passes them is computed by matmul() on the stream.

#include <cublasLt.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "emulator/cublas_descriptors.h"
#include "emulator/device.h"
#include "emulator/stream.h"

namespace emulator {
namespace {

constexpr uint64_t algo_magic = 0x70697065746d6d31;
constexpr uint32_t widest_load = 16;  // bytes

bool supported_types(const cublasLtMatmulDescOpaque& desc, cudaDataType in, cudaDataType out) {
  if (desc.compute == CUBLAS_COMPUTE_64F) {
    return desc.scale == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F;
  }
  return desc.scale == CUDA_R_32F &&
         ((in == CUDA_R_32F && out == CUDA_R_32F) ||
          (in == CUDA_R_16BF && (out == CUDA_R_32F || out == CUDA_R_16BF)));
}

// A matrix that takes part in a product: not empty, columns not overlapping.
bool usable(const cublasLtMatrixLayoutOpaque& layout) {
  const Matrix& matrix = layout.matrix;
  return matrix.rows > 0 && matrix.cols > 0 && matrix.rows <= INT_MAX && matrix.cols <= INT_MAX &&
         matrix.ld >= matrix.rows && matrix.ld <= INT_MAX && layout.batch > 0 &&
         matrix.batch_stride >= 0;
}

cublasStatus_t describe(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d, MatmulShape& shape) {
  if (desc == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr ||
      !usable(*a) || !usable(*b) || !usable(*c) || !usable(*d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  shape.a = a->matrix;
  shape.b = b->matrix;
  shape.c = c->matrix;
  shape.d = d->matrix;
  shape.batch = d->batch;
  shape.transpose_a = desc->op_a == CUBLAS_OP_T;
  shape.transpose_b = desc->op_b == CUBLAS_OP_T;
  shape.has_bias = desc->epilogue == CUBLASLT_EPILOGUE_BIAS;
  shape.m = shape.d.rows;
  shape.n = shape.d.cols;
  shape.k = shape.transpose_a ? shape.a.rows : shape.a.cols;
  const size_t a_rows = shape.transpose_a ? shape.a.cols : shape.a.rows;
  const size_t b_rows = shape.transpose_b ? shape.b.cols : shape.b.rows;
  const size_t b_cols = shape.transpose_b ? shape.b.rows : shape.b.cols;
  if (a_rows != shape.m || b_rows != shape.k || b_cols != shape.n || shape.c.rows != shape.m ||
      shape.c.cols != shape.n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (a->batch != shape.batch || b->batch != shape.batch || c->batch != shape.batch ||
      (shape.batch > 1 && shape.d.batch_stride == 0)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (shape.a.type != shape.b.type || shape.c.type != shape.d.type ||
      !supported_types(*desc, shape.a.type, shape.d.type) ||
      (shape.has_bias && desc->bias_type != -1 && desc->bias_type != int32_t(shape.d.type))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

// FNV-1a over the fields.
uint64_t fingerprint(const MatmulShape& s) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&hash](uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((value >> shift) & 0xff)) * 1099511628211u;
    }
  };
  for (const uint64_t value : {uint64_t(s.transpose_a), uint64_t(s.transpose_b),
                               uint64_t(s.has_bias), uint64_t(s.batch)}) {
    add(value);
  }
  for (const Matrix* matrix : {&s.a, &s.b, &s.c, &s.d}) {
    add(uint64_t(matrix->type));
    add(matrix->rows);
    add(matrix->cols);
    add(matrix->ld);
    add(uint64_t(matrix->batch_stride));
  }
  return hash;
}

bool aligned(const void* pointer, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// What the algorithm relies on: min(the promised alignment, the widest load), at least an element.
uint64_t relied_alignment(uint32_t promised, cudaDataType type) {
  return std::max<uint64_t>(std::min(promised, widest_load), element_bytes(type));
}

size_t footprint_bytes(const Matrix& matrix, int batch) {
  const size_t elements =
      size_t(matrix.batch_stride) * size_t(batch - 1) + matrix.ld * (matrix.cols - 1) + matrix.rows;
  return elements * element_bytes(matrix.type);
}

cublasStatus_t check_operands(const MatmulShape& shape, const MatmulOperands& x,
                              const cublasLtMatmulAlgo_t* algo, int device) {
  const void* const pointers[4] = {x.a, x.b, x.c, x.d};
  const Matrix* const matrices[4] = {&shape.a, &shape.b, &shape.c, &shape.d};
  if (algo != nullptr && (algo->data[0] != algo_magic || algo->data[1] != fingerprint(shape))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (int i = 0; i < 4; ++i) {
    if (i == 2 && x.beta == 0) {
      continue;  // C is not read
    }
    if (!is_device_memory(device, pointers[i], footprint_bytes(*matrices[i], shape.batch))) {
      complain("cublasLtMatmul: a matrix does not lie in one allocation of the handle's device");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    const uint64_t need = algo != nullptr ? algo->data[2 + i] : element_bytes(matrices[i]->type);
    if (!aligned(pointers[i], need)) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  }
  const size_t out_bytes = element_bytes(shape.d.type);
  if (shape.has_bias &&
      (!is_device_memory(device, x.bias, shape.m * out_bytes) || !aligned(x.bias, out_bytes))) {
    complain("cublasLtMatmul: the bias does not lie in the handle's device or is not aligned");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (x.c == x.d && !(shape.c == shape.d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

const char* name_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "<unknown status>";
}

}  // namespace
}  // namespace emulator

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return emulator::name_of(status);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return emulator::name_of(status);
}

// ---- matmul
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  if (handle == nullptr) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  if (preference == nullptr || requested < 1 || results == nullptr || found == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *found = 0;
  emulator::MatmulShape shape;
  const cublasStatus_t status = emulator::describe(desc, a, b, c, d, shape);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  cublasLtMatmulHeuristicResult_t& result = results[0];
  result = {};
  result.algo.data[0] = emulator::algo_magic;
  result.algo.data[1] = emulator::fingerprint(shape);
  const emulator::Matrix* const matrices[4] = {&shape.a, &shape.b, &shape.c, &shape.d};
  for (int i = 0; i < 4; ++i) {
    result.algo.data[2 + i] =
        emulator::relied_alignment(preference->alignment[i], matrices[i]->type);
  }
  result.state = CUBLAS_STATUS_SUCCESS;
  result.wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* A, cublasLtMatrixLayout_t a, const void* B,
                              cublasLtMatrixLayout_t b, const void* beta, const void* C,
                              cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  if (alpha == nullptr || beta == nullptr || (workspace == nullptr && workspace_bytes > 0) ||
      !emulator::aligned(workspace, emulator::widest_load) || stream == nullptr ||
      emulator::device_of(stream) != handle->device) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  emulator::MatmulShape shape;
  cublasStatus_t status = emulator::describe(desc, a, b, c, d, shape);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  const auto scalar = [&](const void* value) {
    return desc->scale == CUDA_R_64F ? *static_cast<const double*>(value)
                                     : double(*static_cast<const float*>(value));
  };
  const emulator::MatmulOperands operands{A, B, C, D, desc->bias, scalar(alpha), scalar(beta)};
  status = emulator::check_operands(shape, operands, algo, handle->device);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  if (emulator::failure(handle->device) != cudaSuccess) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  emulator::find_device(handle->device)->matmuls.fetch_add(1, std::memory_order_relaxed);
  emulator::submit(stream, [shape, operands] { emulator::matmul(shape, operands); });
  return CUBLAS_STATUS_SUCCESS;
}
