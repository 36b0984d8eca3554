// What each operator does with two elements of the accumulation type. One text for the host's loops and the kernels.
//
// Internal linkage and no library templates, for the reason given in small_float.h.
#pragma once

#include <cstdint>

#include "portable.h"

namespace r2ccl {
namespace {

template <class T>
struct Complex {
  T re, im;
};

// Integers of the same width that wrap; sub-int types use unsigned int, so that promotion cannot overflow.
template <class T>
struct Wrapping {
  using type = T;
};
template <>
struct Wrapping<int8_t> {
  using type = unsigned;
};
template <>
struct Wrapping<uint8_t> {
  using type = unsigned;
};
template <>
struct Wrapping<int16_t> {
  using type = unsigned;
};
template <>
struct Wrapping<uint16_t> {
  using type = unsigned;
};
template <>
struct Wrapping<int32_t> {
  using type = uint32_t;
};
template <>
struct Wrapping<int64_t> {
  using type = uint64_t;
};

struct Sum {
  template <class T>
  static R2CCL_FN T apply(T a, T b) noexcept {
    using W = typename Wrapping<T>::type;
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
  template <class T>
  static R2CCL_FN Complex<T> apply(Complex<T> a, Complex<T> b) noexcept {
    return {a.re + b.re, a.im + b.im};
  }
  static R2CCL_FN bool apply(bool a, bool b) noexcept { return a | b; }
};

struct Prod {
  template <class T>
  static R2CCL_FN T apply(T a, T b) noexcept {
    using W = typename Wrapping<T>::type;
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  }
  template <class T>
  static R2CCL_FN Complex<T> apply(Complex<T> a, Complex<T> b) noexcept {
    // Not a difference of products: GCC 12 makes one fused instruction of it in spite of -ffp-contract=off.
    return {a.re * b.re + (-a.im) * b.im, a.re * b.im + a.im * b.re};
  }
  static R2CCL_FN bool apply(bool a, bool b) noexcept { return a & b; }
};

// A NaN in `a` is taken by a != a; one in `b` because it is never the lesser nor the greater.
struct Min {
  template <class T>
  static R2CCL_FN T apply(T a, T b) noexcept {
    return (a < b) | (a != a) ? a : b;
  }
};

struct Max {
  template <class T>
  static R2CCL_FN T apply(T a, T b) noexcept {
    return (a > b) | (a != a) ? a : b;
  }
};

}  // namespace
}  // namespace r2ccl
