// Computes D = alpha * op(A) * op(B) + beta * C + bias for one stream. The product itself is
// CBLAS's gemm on fp32 or fp64; bf16 operands are widened into scratch first. In sanitizer builds
// every operand goes through scratch in plain loops, so that the sanitizer sees each access of a
// matmul to device memory, and CBLAS, whose locks would order streams with each other, is not
// called.

#include "emulator/cublas_matmul.h"

#include <cuda_bf16.h>

#include <cstring>
#include <memory>
#include <type_traits>

#ifndef PIPETRAIN_SANITIZE
#include <cblas.h>
#endif

namespace emulator {
namespace {

#ifdef PIPETRAIN_SANITIZE
constexpr bool always_scratch = true;

// Only scratch of this thread is touched here, so there is nothing for the sanitizer to see.
template <class T>
[[gnu::no_sanitize("thread"), gnu::no_sanitize("address"), gnu::no_sanitize("undefined")]] void
gemm(const MatmulShape& s, T alpha, const T* a, size_t lda, const T* b, size_t ldb, T beta, T* d,
     size_t ldd) {
  for (size_t j = 0; j < s.n; ++j) {
    for (size_t i = 0; i < s.m; ++i) {
      T sum = 0;
      const T* a_row = s.transpose_a ? a + i * lda : a + i;
      const T* b_col = s.transpose_b ? b + j : b + j * ldb;
      const size_t a_step = s.transpose_a ? 1 : lda;
      const size_t b_step = s.transpose_b ? ldb : 1;
      for (size_t p = 0; p < s.k; ++p) {
        sum += a_row[p * a_step] * b_col[p * b_step];
      }
      T& out = d[i + j * ldd];
      out = beta == 0 ? alpha * sum : alpha * sum + beta * out;
    }
  }
}
#else
constexpr bool always_scratch = false;

template <class T>
void gemm(const MatmulShape& s, T alpha, const T* a, size_t lda, const T* b, size_t ldb, T beta,
          T* d, size_t ldd) {
  // One thread: the sum's order, and so the result, does not depend on the machine's load. Setting
  // it again and again would write a shared variable, so once.
  static const bool one_thread = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  (void)one_thread;
  const auto op = [](bool transpose) { return transpose ? CblasTrans : CblasNoTrans; };
  const auto run = [&](auto function) {
    function(CblasColMajor, op(s.transpose_a), op(s.transpose_b), blasint(s.m), blasint(s.n),
             blasint(s.k), alpha, a, blasint(lda), b, blasint(ldb), beta, d, blasint(ldd));
  };
  if constexpr (std::is_same_v<T, float>) {
    run(cblas_sgemm);
  } else {
    run(cblas_dgemm);
  }
}
#endif

// Memory that a worker thread keeps for its next matmul. Never shared between threads.
template <class T, int which>
T* scratch(size_t count) {
  thread_local std::unique_ptr<T[]> memory;
  thread_local size_t capacity = 0;
  if (capacity < count) {
    memory.reset();
    memory.reset(new T[count]);
    capacity = count;
  }
  return memory.get();
}

// In: the operand's type; T: the type that is computed in. Returns the operand as T, column-major
// with the leading dimension ld.
template <class T, int which, class In>
const T* as_computed(const In* matrix, const Matrix& layout, size_t& ld) {
  if constexpr (std::is_same_v<T, In> && !always_scratch) {
    ld = layout.ld;
    return matrix;
  } else {
    ld = layout.rows;
    T* const copy = scratch<T, which>(layout.rows * layout.cols);
    for (size_t col = 0; col < layout.cols; ++col) {
      for (size_t row = 0; row < layout.rows; ++row) {
        copy[row + col * ld] = T(matrix[row + col * layout.ld]);
      }
    }
    return copy;
  }
}

// Out: the type of C, D and the bias.
template <class T, class In, class Out>
void matmul_one(const MatmulShape& s, const In* a, const In* b, const Out* c, Out* d,
                const Out* bias, T alpha, T beta) {
  size_t lda = 0, ldb = 0;
  const T* const a_computed = as_computed<T, 0>(a, s.a, lda);
  const T* const b_computed = as_computed<T, 1>(b, s.b, ldb);
  if constexpr (std::is_same_v<T, Out> && !always_scratch) {
    if (beta != 0 && c != d) {
      for (size_t col = 0; col < s.n; ++col) {
        std::memcpy(d + col * s.d.ld, c + col * s.c.ld, s.m * sizeof(T));
      }
    }
    gemm<T>(s, alpha, a_computed, lda, b_computed, ldb, beta, d, s.d.ld);
    if (bias != nullptr) {
      for (size_t col = 0; col < s.n; ++col) {
        for (size_t row = 0; row < s.m; ++row) {
          d[row + col * s.d.ld] += bias[row];
        }
      }
    }
  } else {
    T* const product = scratch<T, 2>(s.m * s.n);
    gemm<T>(s, alpha, a_computed, lda, b_computed, ldb, T(0), product, s.m);
    for (size_t col = 0; col < s.n; ++col) {
      for (size_t row = 0; row < s.m; ++row) {
        T value = product[row + col * s.m];
        if (beta != 0) {
          value += beta * T(c[row + col * s.c.ld]);
        }
        if (bias != nullptr) {
          value += T(bias[row]);
        }
        d[row + col * s.d.ld] = Out(value);
      }
    }
  }
}

template <class T, class In, class Out>
void matmul_batch(const MatmulShape& s, const MatmulOperands& x) {
  const auto* a = static_cast<const In*>(x.a);
  const auto* b = static_cast<const In*>(x.b);
  const auto* c = static_cast<const Out*>(x.c);
  auto* d = static_cast<Out*>(x.d);
  for (int i = 0; i < s.batch; ++i) {
    matmul_one<T, In, Out>(s, a + i * s.a.batch_stride, b + i * s.b.batch_stride,
                           x.beta == 0 ? nullptr : c + i * s.c.batch_stride,
                           d + i * s.d.batch_stride, static_cast<const Out*>(x.bias), T(x.alpha),
                           T(x.beta));
  }
}

}  // namespace

size_t element_bytes(cudaDataType type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

void matmul(const MatmulShape& shape, const MatmulOperands& operands) {
  if (shape.d.type == CUDA_R_64F) {
    matmul_batch<double, double, double>(shape, operands);
  } else if (shape.a.type == CUDA_R_32F) {
    matmul_batch<float, float, float>(shape, operands);
  } else if (shape.d.type == CUDA_R_32F) {
    matmul_batch<float, __nv_bfloat16, float>(shape, operands);
  } else {
    matmul_batch<float, __nv_bfloat16, __nv_bfloat16>(shape, operands);
  }
}

}  // namespace emulator
