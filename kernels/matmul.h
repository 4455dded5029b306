#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>

#include "kernels/types.h"

namespace pipetrain::kernels {

// C (m, n) = alpha * op(A) (m, k) * op(B) (k, n) + beta * C + bias (n), everything row-major.
// A is stored (k, m) if transpose_a, B (n, k) if transpose_b.
struct MatmulShape {
  int m = 0;
  int n = 0;
  int k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  // Elements from row to row as stored; 0: dense.
  int lda = 0;
  int ldb = 0;
  int ldc = 0;
  // Matrices of the batch and elements from one to the next.
  int batch = 1;
  int64_t stride_a = 0;
  int64_t stride_b = 0;
  int64_t stride_c = 0;

  friend auto operator<=>(const MatmulShape&, const MatmulShape&) = default;
};

// Bytes that a Matmul's workspace has; a constant, since the choice of algorithm depends on it.
size_t matmul_workspace_bytes();

// Matrix products by cuBLASLt: descriptors and the algorithm are chosen once per shape and kept.
// The algorithm depends on shape and types alone and never splits k over blocks, so equal calls
// give equal bits. bf16 and float accumulate in float (no TF32), double in double. All calls of
// one Matmul go to one stream. Pointers are multiples of 16 bytes.
class Matmul {
 public:
  // workspace: device memory of matmul_workspace_bytes().
  explicit Matmul(std::byte* workspace);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Makes the plan of a shape, which run() otherwise does at its first use. Throws InternalError
  // if cuBLASLt has no algorithm for it. Output is Input or, for weight gradients, acc_t<Input>.
  template <typename Output, typename Input>
  void plan(const MatmulShape& shape, bool bias = false);

  size_t plans() const { return plans_.size(); }

  template <typename Output, typename Input>
  void run(const MatmulShape& shape, Output* c, const Input* a, const Input* b,
           std::type_identity_t<const Output*> bias, acc_t<Input> alpha, acc_t<Input> beta,
           cudaStream_t stream);

 private:
  struct Key {
    MatmulShape shape;
    cudaDataType input = CUDA_R_32F;
    cudaDataType output = CUDA_R_32F;
    bool bias = false;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Plan;
  Plan& find(const Key& key);

  cublasLtHandle_t handle_ = nullptr;
  std::byte* workspace_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace pipetrain::kernels
