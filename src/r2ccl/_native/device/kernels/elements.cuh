// Element types as kernels see them: how they lie in memory (Stored), in which type they are combined (Wide), and 16
// bytes of them at once (Quad, kLanes elements).
#pragma once

#include "../element_ops.h"
#include "../small_float.h"
#include "portable.cuh"

namespace r2ccl::kernels {

struct alignas(16) Quad {
  uint32_t w[4];
};

// The type is its own accumulation type.
template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static R2CCL_DEVICE Wide widen(Stored v) { return v; }
  static R2CCL_DEVICE Stored narrow(Wide v) { return v; }
};

// Any byte but zero is true.
struct Bool {
  using Stored = uint8_t;
  using Wide = bool;
  static R2CCL_DEVICE Wide widen(Stored v) { return v != 0; }
  static R2CCL_DEVICE Stored narrow(Wide v) { return v; }
};

// 8- and 16-bit floats: combined in float32, rounded once to nearest even. Overflow becomes infinity, or NaN where the
// format has none (float8_e4m3fn): it does not saturate.
template <class Format>
struct Small {
  using Stored = typename Format::Code;
  using Wide = float;
  static R2CCL_DEVICE Wide widen(Stored v) { return Format::widen(v); }
  static R2CCL_DEVICE Stored narrow(Wide v) { return Format::narrow(v); }
};

template <class E>
constexpr uint32_t kLanes = sizeof(Quad) / sizeof(typename E::Stored);

template <class E>
struct Packed {
  typename E::Stored v[kLanes<E>];
};

template <class E>
R2CCL_DEVICE void unpack(const Quad& quad, typename E::Wide (&lanes)[kLanes<E>]) {
  const auto packed = __builtin_bit_cast(Packed<E>, quad);
  R2CCL_UNROLL
  for (uint32_t k = 0; k < kLanes<E>; ++k) lanes[k] = E::widen(packed.v[k]);
}

template <class E>
R2CCL_DEVICE Quad pack(const typename E::Wide (&lanes)[kLanes<E>]) {
  Packed<E> packed;
  R2CCL_UNROLL
  for (uint32_t k = 0; k < kLanes<E>; ++k) packed.v[k] = E::narrow(lanes[k]);
  return __builtin_bit_cast(Quad, packed);
}

#if defined(__CUDA_ARCH__)
#include "elements_gpu.inl"
#endif

// Division of the sum by the number of ranks; integers truncate toward zero.
R2CCL_DEVICE float divided(float v, uint32_t by) { return v / static_cast<float>(by); }
R2CCL_DEVICE double divided(double v, uint32_t by) { return v / static_cast<double>(by); }
template <class T>
R2CCL_DEVICE Complex<T> divided(Complex<T> v, uint32_t by) {
  return {divided(v.re, by), divided(v.im, by)};
}
R2CCL_DEVICE uint64_t divided(uint64_t v, uint32_t by) { return v / by; }
R2CCL_DEVICE int64_t divided(int64_t v, uint32_t by) { return v / static_cast<int64_t>(by); }
R2CCL_DEVICE uint32_t divided(uint32_t v, uint32_t by) { return v / by; }
// By magnitude, in 32 bits: GPUs divide 64 bits slowly.
R2CCL_DEVICE int32_t divided(int32_t v, uint32_t by) {
  const uint32_t magnitude = v < 0 ? 0u - static_cast<uint32_t>(v) : static_cast<uint32_t>(v);
  const uint32_t quotient = magnitude / by;
  return static_cast<int32_t>(v < 0 ? 0u - quotient : quotient);
}
R2CCL_DEVICE uint16_t divided(uint16_t v, uint32_t by) { return static_cast<uint16_t>(v / by); }
R2CCL_DEVICE uint8_t divided(uint8_t v, uint32_t by) { return static_cast<uint8_t>(v / by); }
R2CCL_DEVICE int16_t divided(int16_t v, uint32_t by) { return static_cast<int16_t>(divided(int32_t{v}, by)); }
R2CCL_DEVICE int8_t divided(int8_t v, uint32_t by) { return static_cast<int8_t>(divided(int32_t{v}, by)); }

}  // namespace r2ccl::kernels
