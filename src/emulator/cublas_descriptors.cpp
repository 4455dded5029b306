// cuBLASLt's handles and descriptors: made, changed and deleted.

#include "emulator/cublas_descriptors.h"

#include <cstring>

#include "emulator/stream.h"

namespace emulator {
namespace {

template <class T>
cublasStatus_t read_attribute(T& field, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&field, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

bool known(cudaDataType type) {
  return type == CUDA_R_32F || type == CUDA_R_64F || type == CUDA_R_16BF;
}

template <class Handle>
cublasStatus_t destroy(Handle handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace emulator

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *handle = new cublasLtContext{emulator::current_device()};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : emulator::destroy(handle);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  if (layout == nullptr || !emulator::known(type) || ld < 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *layout = new cublasLtMatrixLayoutOpaque{{type, rows, cols, size_t(ld), 0}, 1};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return emulator::destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  using emulator::read_attribute;
  if (layout == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  emulator::Matrix& matrix = layout->matrix;
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: {
      uint32_t type = 0;
      status = read_attribute(type, value, bytes);
      if (status == CUBLAS_STATUS_SUCCESS) {
        matrix.type = cudaDataType(type);
        return emulator::known(matrix.type) ? status : CUBLAS_STATUS_NOT_SUPPORTED;
      }
      return status;
    }
    case CUBLASLT_MATRIX_LAYOUT_ORDER: {
      int32_t order = 0;
      status = read_attribute(order, value, bytes);
      return status == CUBLAS_STATUS_SUCCESS && order != CUBLASLT_ORDER_COL
                 ? CUBLAS_STATUS_NOT_SUPPORTED
                 : status;
    }
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return read_attribute(matrix.rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return read_attribute(matrix.cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return read_attribute(matrix.ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return read_attribute(layout->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return read_attribute(matrix.batch_stride, value, bytes);
  }
  return status;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (desc == nullptr || (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_64F)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *desc = new cublasLtMatmulDescOpaque;
  (*desc)->compute = compute;
  (*desc)->scale = scale;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return emulator::destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  using emulator::read_attribute;
  if (desc == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto read_op = [&](cublasOperation_t& op) {
    int32_t given = 0;
    const cublasStatus_t status = read_attribute(given, value, bytes);
    if (status != CUBLAS_STATUS_SUCCESS) {
      return status;
    }
    if (given != CUBLAS_OP_N && given != CUBLAS_OP_T) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    op = cublasOperation_t(given);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return read_op(desc->op_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return read_op(desc->op_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: {
      uint32_t epilogue = 0;
      const cublasStatus_t status = read_attribute(epilogue, value, bytes);
      if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
      }
      if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
      }
      desc->epilogue = epilogue;
      return CUBLAS_STATUS_SUCCESS;
    }
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return read_attribute(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return read_attribute(desc->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  if (preference == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *preference = new cublasLtMatmulPreferenceOpaque;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return emulator::destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  using emulator::read_attribute;
  if (preference == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto read_alignment = [&](uint32_t& alignment) {
    uint32_t given = 0;
    const cublasStatus_t status = read_attribute(given, value, bytes);
    if (status != CUBLAS_STATUS_SUCCESS || given == 0 || (given & (given - 1)) != 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    alignment = given;
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return read_attribute(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return read_attribute(preference->reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return read_alignment(preference->alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return read_alignment(preference->alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return read_alignment(preference->alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return read_alignment(preference->alignment[3]);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
