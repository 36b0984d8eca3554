// The loops, in portable C++ that the compiler vectorises. Included once per instruction set by host_baseline.cc,
// host_avx2.cc and host_avx512.cc, which define R2CCL_KERNELS (the table's name) and R2CCL_KERNELS_NAME.
//
// Internal linkage and no library templates, for the reason given in small_float.h. Compile without contraction
// (-ffp-contract=off): the same inputs must give the same bits on every processor of a job.

#include <cstddef>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "element_ops.h"
#include "host_kernels.h"
#include "small_float.h"

// Says that no iteration touches what another one writes. That holds also where dst is exactly a or b, which a
// restrict qualifier would forbid.
#if defined(__clang__)
#define R2CCL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define R2CCL_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace r2ccl {
namespace {

// An element at any address.
template <class T>
struct __attribute__((packed, may_alias)) Slot {
  T value;
};

template <class T, class Op>
void combine(void* dst, const void* a, const void* b, size_t count) noexcept {
  Slot<T>* d = static_cast<Slot<T>*>(dst);
  const Slot<T>* x = static_cast<const Slot<T>*>(a);
  const Slot<T>* y = static_cast<const Slot<T>*>(b);
  R2CCL_INDEPENDENT
  for (size_t i = 0; i < count; ++i) d[i].value = Op::apply(x[i].value, y[i].value);
}

// Any byte but zero is true.
template <class Op>
void combine_bool(void* dst, const void* a, const void* b, size_t count) noexcept {
  Slot<uint8_t>* d = static_cast<Slot<uint8_t>*>(dst);
  const Slot<uint8_t>* x = static_cast<const Slot<uint8_t>*>(a);
  const Slot<uint8_t>* y = static_cast<const Slot<uint8_t>*>(b);
  R2CCL_INDEPENDENT
  for (size_t i = 0; i < count; ++i) d[i].value = Op::apply(x[i].value != 0, y[i].value != 0);
}

// `Divisor` holds every value of T and of the divisor. Integer division truncates toward zero.
template <class T, class Divisor>
void divide(void* data, uint32_t divisor, size_t count) noexcept {
  Slot<T>* d = static_cast<Slot<T>*>(data);
  const Divisor by = static_cast<Divisor>(divisor);
  R2CCL_INDEPENDENT
  for (size_t i = 0; i < count; ++i) d[i].value = static_cast<T>(static_cast<Divisor>(d[i].value) / by);
}

template <class T>
void divide_complex(void* data, uint32_t divisor, size_t count) noexcept {
  divide<T, T>(data, divisor, 2 * count);
}

// The processor's own conversion of as many leading elements as whole vectors hold; returns how many it did.
template <class Format>
size_t widen_vectors(void*, const void*, size_t) noexcept {
  return 0;
}
template <class Format>
size_t narrow_vectors(void*, const void*, size_t) noexcept {
  return 0;
}

#if defined(__AVX512F__)
constexpr __mmask16 kAll = 0xffff;  // the forms without a mask make the compiler warn of their undefined operand
#endif

#if defined(__F16C__)
template <>
size_t widen_vectors<Float16>(void* dst, const void* src, size_t count) noexcept {
  float* d = static_cast<float*>(dst);
  const uint16_t* s = static_cast<const uint16_t*>(src);
  size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    _mm512_storeu_ps(d + i, _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + i))));
  }
#endif
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s + i))));
  }
  return i;
}

template <>
size_t narrow_vectors<Float16>(void* dst, const void* src, size_t count) noexcept {
  uint16_t* d = static_cast<uint16_t*>(dst);
  const float* s = static_cast<const float*>(src);
  size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + i),
                        _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(d + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}
#endif

template <class Format>
void widen(void* dst, const void* src, size_t count) noexcept {
  Slot<float>* d = static_cast<Slot<float>*>(dst);
  const Slot<typename Format::Code>* s = static_cast<const Slot<typename Format::Code>*>(src);
  const size_t done = widen_vectors<Format>(dst, src, count);
  R2CCL_INDEPENDENT
  for (size_t i = done; i < count; ++i) d[i].value = Format::widen(s[i].value);
}

template <class Format>
void narrow(void* dst, const void* src, size_t count) noexcept {
  Slot<typename Format::Code>* d = static_cast<Slot<typename Format::Code>*>(dst);
  const Slot<float>* s = static_cast<const Slot<float>*>(src);
  const size_t done = narrow_vectors<Format>(dst, src, count);
  R2CCL_INDEPENDENT
  for (size_t i = done; i < count; ++i) d[i].value = Format::narrow(s[i].value);
}

template <class T, class Divisor>
constexpr void add_real(KernelTable& table, DType dtype) noexcept {
  const size_t row = static_cast<size_t>(dtype);
  table.combine[row][static_cast<size_t>(ReduceOp::kSum)] = &combine<T, Sum>;
  table.combine[row][static_cast<size_t>(ReduceOp::kProd)] = &combine<T, Prod>;
  table.combine[row][static_cast<size_t>(ReduceOp::kMin)] = &combine<T, Min>;
  table.combine[row][static_cast<size_t>(ReduceOp::kMax)] = &combine<T, Max>;
  table.divide[row] = &divide<T, Divisor>;
}

template <class T>
constexpr void add_complex(KernelTable& table, DType dtype) noexcept {
  const size_t row = static_cast<size_t>(dtype);
  table.combine[row][static_cast<size_t>(ReduceOp::kSum)] = &combine<Complex<T>, Sum>;
  table.combine[row][static_cast<size_t>(ReduceOp::kProd)] = &combine<Complex<T>, Prod>;
  table.divide[row] = &divide_complex<T>;
}

template <class Format>
constexpr void add_low_precision(KernelTable& table, DType dtype) noexcept {
  table.widen[static_cast<size_t>(dtype)] = &widen<Format>;
  table.narrow[static_cast<size_t>(dtype)] = &narrow<Format>;
}

constexpr KernelTable make_table() noexcept {
  KernelTable table{};
  table.name = R2CCL_KERNELS_NAME;
  CombineFn(&of_bool)[KernelTable::kOps] = table.combine[static_cast<size_t>(DType::kBool)];
  of_bool[static_cast<size_t>(ReduceOp::kSum)] = of_bool[static_cast<size_t>(ReduceOp::kMax)] = &combine_bool<Sum>;
  of_bool[static_cast<size_t>(ReduceOp::kProd)] = of_bool[static_cast<size_t>(ReduceOp::kMin)] = &combine_bool<Prod>;
  add_real<int8_t, int64_t>(table, DType::kInt8);
  add_real<uint8_t, uint32_t>(table, DType::kUint8);
  add_real<int16_t, int64_t>(table, DType::kInt16);
  add_real<uint16_t, uint32_t>(table, DType::kUint16);
  add_real<int32_t, int64_t>(table, DType::kInt32);
  add_real<uint32_t, uint32_t>(table, DType::kUint32);
  add_real<int64_t, int64_t>(table, DType::kInt64);
  add_real<uint64_t, uint64_t>(table, DType::kUint64);
  add_real<float, float>(table, DType::kFloat32);
  add_real<double, double>(table, DType::kFloat64);
  add_complex<float>(table, DType::kComplex64);
  add_complex<double>(table, DType::kComplex128);
  add_low_precision<Float16>(table, DType::kFloat16);
  add_low_precision<Bfloat16>(table, DType::kBfloat16);
  add_low_precision<Float8E4m3fn>(table, DType::kFloat8E4m3fn);
  add_low_precision<Float8E5m2>(table, DType::kFloat8E5m2);
  return table;
}

}  // namespace

constinit const KernelTable R2CCL_KERNELS = make_table();

}  // namespace r2ccl
