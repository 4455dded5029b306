#pragma once

#include <bit>
#include <cstdint>

// The part of CUDA's bfloat16 that converts. There is no arithmetic: convert to float, compute,
// convert back. Conversion to float is explicit, so that a forgotten one does not compile here
// instead of rounding differently on a GPU.

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  // Rounds to nearest even; every NaN becomes 0x7fff. Without branches, so that loops vectorise.
  __nv_bfloat16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    bits_ = uint16_t(nan ? 0x7fffu : rounded);
  }
  __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits_(raw.x) {}
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits_) << 16); }
  operator __nv_bfloat16_raw() const { return {bits_}; }

 private:
  uint16_t bits_;
};

inline __nv_bfloat16 __float2bfloat16(float value) {
  return __nv_bfloat16(value);
}
inline float __bfloat162float(__nv_bfloat16 value) {
  return float(value);
}
