// Conversions between float32 and the 8- and 16-bit floats, without branches so that loops over them vectorise.
//
// This header is compiled once per instruction set, and for the GPU. Everything in it has internal linkage, and it uses
// compiler builtins instead of library templates: a shared inline function might otherwise be linked from the object
// compiled for the newest processor and trap on an older one.
#pragma once

#include <cstdint>

#include "portable.h"

namespace r2ccl {
namespace {

R2CCL_FN float as_float(uint32_t bits) noexcept { return __builtin_bit_cast(float, bits); }
R2CCL_FN uint32_t as_bits(float value) noexcept { return __builtin_bit_cast(uint32_t, value); }

constexpr uint32_t kFloat32Infinity = 0x7f800000u;

// `a` where the condition holds, else `b`. Both are evaluated: a conditional operator would let the compiler sink one
// of them into a branch, and loops with branches do not vectorise.
R2CCL_FN uint32_t select(bool condition, uint32_t a, uint32_t b) noexcept {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

// Signed comparisons of numbers below 2^31, since the baseline instruction set has no unsigned ones.
R2CCL_FN bool less(uint32_t a, uint32_t b) noexcept { return static_cast<int32_t>(a) < static_cast<int32_t>(b); }

// Sign, `Exponent` bits, `Mantissa` bits; subnormals are kept. With Infinities the top exponent holds infinity and NaN
// as in IEEE 754; without, only the all-ones code is NaN and there is no infinity (the "fn" formats).
template <class Bits, int Exponent, int Mantissa, bool Infinities>
struct SmallFloat {
  using Code = Bits;
  static constexpr int kBias = (1 << (Exponent - 1)) - 1;
  static constexpr int kShift = 23 - Mantissa;
  static constexpr uint32_t kMask = (1u << (Exponent + Mantissa)) - 1;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kMinNormal = kRebias + (1u << 23);  // float32 bits of the smallest normal number
  // Adding this number to a subnormal result makes the processor round it at the right bit.
  static constexpr uint32_t kSubnormalMagic = static_cast<uint32_t>(127 + 24 - kBias - Mantissa) << 23;
  static constexpr uint32_t kTop = ((1u << Exponent) - 1) << Mantissa;  // infinity, where there is one
  static constexpr uint32_t kOverflow = Infinities ? kTop : kMask;

  static R2CCL_FN float widen(Code code) noexcept {
    const uint32_t magnitude = (code & kMask) << kShift;
    const uint32_t sign = (code & ~kMask) << (31 - Exponent - Mantissa);
    const uint32_t subnormal = as_bits(as_float(magnitude + kMinNormal) - as_float(kMinNormal));
    uint32_t bits = select(less(magnitude, 1u << 23), subnormal, magnitude + kRebias);
    if constexpr (Infinities) {
      const uint32_t quiet = select(less(kTop << kShift, magnitude), 1u << 22, 0);
      bits = select(less(magnitude, kTop << kShift), bits, (magnitude + 2 * kRebias) | quiet);
    } else {
      bits = select(magnitude == (kMask << kShift), 0x7fc00000u, bits);
    }
    return as_float(bits | sign);
  }

  static R2CCL_FN Code narrow(float value) noexcept {
    const uint32_t bits = as_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t odd = (magnitude >> kShift) & 1;
    uint32_t code = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    code = select(less(code, kOverflow), code, kOverflow);
    const uint32_t subnormal = as_bits(as_float(magnitude) + as_float(kSubnormalMagic)) - kSubnormalMagic;
    code = select(less(magnitude, kMinNormal), subnormal, code);
    code = select(less(kFloat32Infinity, magnitude), nan_code(magnitude), code);
    return static_cast<Code>(code | ((bits >> 31) << (Exponent + Mantissa)));
  }

 private:
  // A quiet NaN. float16 keeps the payload, because the processor's own conversion does.
  static constexpr R2CCL_FN uint32_t nan_code(uint32_t magnitude) noexcept {
    if constexpr (!Infinities) return kMask;
    if constexpr (sizeof(Code) == 1) return kTop | (1u << (Mantissa - 1));
    return kTop | (1u << (Mantissa - 1)) | ((magnitude >> kShift) & ((1u << Mantissa) - 1));
  }
};

using Float16 = SmallFloat<uint16_t, 5, 10, true>;
using Float8E4m3fn = SmallFloat<uint8_t, 4, 3, false>;
using Float8E5m2 = SmallFloat<uint8_t, 5, 2, true>;

// The upper half of a float32.
struct Bfloat16 {
  using Code = uint16_t;
  static R2CCL_FN float widen(Code code) noexcept { return as_float(static_cast<uint32_t>(code) << 16); }
  static R2CCL_FN Code narrow(float value) noexcept {
    const uint32_t bits = as_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = ((bits >> 16) & 0x8000u) | 0x7fc0u;
    return static_cast<Code>(select(less(kFloat32Infinity, bits & 0x7fffffffu), nan, rounded));
  }
};

}  // namespace
}  // namespace r2ccl
