// Row-major matrix products by cuBLASLt, which is column-major: a row-major matrix is the transpose
// of a column-major one, and C^T = op(B)^T op(A)^T, so the operands change places.

#include <sstream>
#include <string>

#include "kernels/matmul.h"
#include "pipetrain/error.h"

namespace pipetrain::kernels {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw InternalError(std::string(call) + ": " + cublasLtGetStatusName(status));
  }
}

template <typename Attribute, typename Value>
void set(cublasLtMatmulDesc_t descriptor, Attribute attribute, Value value) {
  check_cublas(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)),
               "cublasLtMatmulDescSetAttribute");
}

// A row-major matrix, or a batch, as the column-major one with the same memory.
cublasLtMatrixLayout_t make_layout(cudaDataType type, int rows, int columns, int stride, int batch,
                                   int64_t batch_stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(&layout, type, columns, rows, stride),
               "cublasLtMatrixLayoutCreate");
  if (batch > 1) {
    check_cublas(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                  &batch, sizeof(batch)),
                 "cublasLtMatrixLayoutSetAttribute");
    check_cublas(
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &batch_stride, sizeof(batch_stride)),
        "cublasLtMatrixLayoutSetAttribute");
  }
  return layout;
}

[[noreturn]] void fail(const char* call, cublasStatus_t status, const MatmulShape& shape) {
  std::ostringstream message;
  message << call << ": " << cublasLtGetStatusName(status) << " for m = " << shape.m
          << ", n = " << shape.n << ", k = " << shape.k << ", batch " << shape.batch;
  throw InternalError(message.str());
}

}  // namespace

size_t matmul_workspace_bytes() {
#ifdef PIPETRAIN_CUDA
  return size_t(32) << 20;
#else
  return 0;  // the emulator's algorithm needs none
#endif
}

struct Matmul::Plan {
  cublasLtMatmulDesc_t descriptor = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(descriptor);
  }
};

Matmul::Matmul(std::byte* workspace) : workspace_(workspace) {
  check_cublas(cublasLtCreate(&handle_), "cublasLtCreate");
}

Matmul::~Matmul() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

Matmul::Plan& Matmul::find(const Key& key) {
  std::unique_ptr<Plan>& slot = plans_[key];
  if (slot) {
    return *slot;
  }
  const MatmulShape& s = key.shape;
  auto plan = std::make_unique<Plan>();
  const int a_rows = s.transpose_a ? s.k : s.m;
  const int a_columns = s.transpose_a ? s.m : s.k;
  const int b_rows = s.transpose_b ? s.n : s.k;
  const int b_columns = s.transpose_b ? s.k : s.n;
  plan->a = make_layout(key.input, a_rows, a_columns, s.lda != 0 ? s.lda : a_columns, s.batch,
                        s.stride_a);
  plan->b = make_layout(key.input, b_rows, b_columns, s.ldb != 0 ? s.ldb : b_columns, s.batch,
                        s.stride_b);
  plan->c = make_layout(key.output, s.m, s.n, s.ldc != 0 ? s.ldc : s.n, s.batch, s.stride_c);

  const bool fp64 = key.input == CUDA_R_64F;
  check_cublas(
      cublasLtMatmulDescCreate(&plan->descriptor, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                               fp64 ? CUDA_R_64F : CUDA_R_32F),
      "cublasLtMatmulDescCreate");
  set(plan->descriptor, CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan->descriptor, CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan->descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE,
      key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
  if (key.bias) {  // each run sets its own; here an aligned one for the heuristic
    set(plan->descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(workspace_));
  }

  cublasLtMatmulPreference_t preference = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        cublasStatus_t (*)(cublasLtMatmulPreference_t)>
      owner(preference, cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(matmul_workspace_bytes()));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(operand, uint32_t(16));
  }
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan->descriptor, plan->b, plan->a, plan->c, plan->c,
                                     preference, 1, &result, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0 || result.state != CUBLAS_STATUS_SUCCESS) {
    fail("cublasLtMatmulAlgoGetHeuristic finds no algorithm", status, s);
  }
  plan->algorithm = result.algo;
  slot = std::move(plan);
  return *slot;
}

template <typename Output, typename Input>
void Matmul::plan(const MatmulShape& shape, bool bias) {
  find({shape, data_type<Input>, data_type<Output>, bias});
}

template <typename Output, typename Input>
void Matmul::run(const MatmulShape& shape, Output* c, const Input* a, const Input* b,
                 std::type_identity_t<const Output*> bias, acc_t<Input> alpha, acc_t<Input> beta,
                 cudaStream_t stream) {
  Plan& plan = find({shape, data_type<Input>, data_type<Output>, bias != nullptr});
  if (bias != nullptr) {
    set(plan.descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const cublasStatus_t status =
      cublasLtMatmul(handle_, plan.descriptor, &alpha, b, plan.b, a, plan.a, &beta, c, plan.c, c,
                     plan.c, &plan.algorithm, workspace_, matmul_workspace_bytes(), stream);
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail("cublasLtMatmul", status, shape);
  }
}

#define INSTANTIATE(Output, Input)                                                    \
  template void Matmul::plan<Output, Input>(const MatmulShape&, bool);                \
  template void Matmul::run<Output, Input>(const MatmulShape&, Output*, const Input*, \
                                           const Input*, const Output*, acc_t<Input>, \
                                           acc_t<Input>, cudaStream_t);
INSTANTIATE(float, float)
INSTANTIATE(bf16, bf16)
INSTANTIATE(float, bf16)
#ifdef PIPETRAIN_HOST
INSTANTIATE(double, double)
#endif

}  // namespace pipetrain::kernels
