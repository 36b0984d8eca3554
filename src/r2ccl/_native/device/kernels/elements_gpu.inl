// The GPU's own conversions, two at a time, instead of those of small_float.h. The same bits but for the payload of a
// NaN. Part of elements.cuh, inside its namespace, for the device's pass of nvcc only.

// In both formats the first operand of a conversion of two goes to the upper half.
template <>
R2CCL_DEVICE void unpack<Small<Float16>>(const Quad& quad, float (&lanes)[8]) {
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(lanes[2 * k]), "=f"(lanes[2 * k + 1])
        : "r"(quad.w[k]));
  }
}

template <>
R2CCL_DEVICE Quad pack<Small<Float16>>(const float (&lanes)[8]) {
  Quad quad;
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
        : "=r"(quad.w[k])
        : "f"(lanes[2 * k]), "f"(lanes[2 * k + 1]));
  }
  return quad;
}

#if __CUDA_ARCH__ >= 800
template <>
R2CCL_DEVICE Quad pack<Small<Bfloat16>>(const float (&lanes)[8]) {
  Quad quad;
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(quad.w[k]) : "f"(lanes[2 * k]), "f"(lanes[2 * k + 1]));
  }
  return quad;
}
#endif

#if __CUDA_ARCH__ >= 890
// float16 holds every 8-bit float exactly.
template <>
R2CCL_DEVICE void unpack<Small<Float8E4m3fn>>(const Quad& quad, float (&lanes)[16]) {
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 8; ++k) {
    const auto two = static_cast<uint16_t>(quad.w[k / 2] >> (k % 2 * 16));
    asm("{.reg .b32 p; .reg .b16 l, h; cvt.rn.f16x2.e4m3x2 p, %2; mov.b32 {l, h}, p; "
        "cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(lanes[2 * k]), "=f"(lanes[2 * k + 1])
        : "h"(two));
  }
}

template <>
R2CCL_DEVICE void unpack<Small<Float8E5m2>>(const Quad& quad, float (&lanes)[16]) {
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 8; ++k) {
    const auto two = static_cast<uint16_t>(quad.w[k / 2] >> (k % 2 * 16));
    asm("{.reg .b32 p; .reg .b16 l, h; cvt.rn.f16x2.e5m2x2 p, %2; mov.b32 {l, h}, p; "
        "cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(lanes[2 * k]), "=f"(lanes[2 * k + 1])
        : "h"(two));
  }
}

// These conversions saturate, so what is too large is put right: from halfway to the number that would follow the
// largest one, infinity (e5m2, whose largest code is odd), or beyond it, NaN (e4m3fn, whose largest code is even).
template <>
R2CCL_DEVICE Quad pack<Small<Float8E4m3fn>>(const float (&lanes)[16]) {
  Quad quad{};
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 8; ++k) {
    const float x = lanes[2 * k], y = lanes[2 * k + 1];
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(two) : "f"(x), "f"(y));
    const uint32_t nan = (__builtin_fabsf(x) > 464.0f ? 0x7fu : 0u) | (__builtin_fabsf(y) > 464.0f ? 0x7f00u : 0u);
    quad.w[k / 2] |= (two | nan) << (k % 2 * 16);
  }
  return quad;
}

template <>
R2CCL_DEVICE Quad pack<Small<Float8E5m2>>(const float (&lanes)[16]) {
  Quad quad{};
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 8; ++k) {
    const float x = lanes[2 * k], y = lanes[2 * k + 1];
    uint16_t two;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(two) : "f"(x), "f"(y));
    // 0x7b becomes 0x7c.
    const uint32_t one_more =
        (__builtin_fabsf(x) >= 61440.0f ? 1u : 0u) | (__builtin_fabsf(y) >= 61440.0f ? 0x100u : 0u);
    quad.w[k / 2] |= (two + one_more) << (k % 2 * 16);
  }
  return quad;
}
#endif
