// Which kernels there are. Sums and products of signed integers have the bits of the unsigned ones, bool's minimum is
// its product and its maximum its sum, so these have no kernels of their own; a name is made by cuda.cc from
// the type and the operator, as r2ccl_reduce_float32_sum.
#pragma once

// X(type, operator, element, operation, divides)
#define R2CCL_ORDER(X, type, ...) X(type, min, __VA_ARGS__, Min, false) X(type, max, __VA_ARGS__, Max, false)
#define R2CCL_AVERAGE(X, type, ...) X(type, avg, __VA_ARGS__, Sum, true)
#define R2CCL_SUM_PROD(X, type, ...) X(type, sum, __VA_ARGS__, Sum, false) X(type, prod, __VA_ARGS__, Prod, false)
#define R2CCL_SIGNED(X, type, ...) R2CCL_ORDER(X, type, __VA_ARGS__) R2CCL_AVERAGE(X, type, __VA_ARGS__)
#define R2CCL_REAL(X, type, ...) R2CCL_SUM_PROD(X, type, __VA_ARGS__) R2CCL_SIGNED(X, type, __VA_ARGS__)
#define R2CCL_COMPLEX(X, type, ...) R2CCL_SUM_PROD(X, type, __VA_ARGS__) R2CCL_AVERAGE(X, type, __VA_ARGS__)

#define R2CCL_SMALL_REDUCTIONS(X)                   \
  R2CCL_REAL(X, float16, Small<Float16>)            \
  R2CCL_REAL(X, bfloat16, Small<Bfloat16>)          \
  R2CCL_REAL(X, float8_e4m3fn, Small<Float8E4m3fn>) \
  R2CCL_REAL(X, float8_e5m2, Small<Float8E5m2>)

#define R2CCL_REDUCTIONS(X)                            \
  R2CCL_SUM_PROD(X, bool, Bool)                        \
  R2CCL_SIGNED(X, int8, Plain<int8_t>)                 \
  R2CCL_REAL(X, uint8, Plain<uint8_t>)                 \
  R2CCL_SIGNED(X, int16, Plain<int16_t>)               \
  R2CCL_REAL(X, uint16, Plain<uint16_t>)               \
  R2CCL_SIGNED(X, int32, Plain<int32_t>)               \
  R2CCL_REAL(X, uint32, Plain<uint32_t>)               \
  R2CCL_SIGNED(X, int64, Plain<int64_t>)               \
  R2CCL_REAL(X, uint64, Plain<uint64_t>)               \
  R2CCL_REAL(X, float32, Plain<float>)                 \
  R2CCL_REAL(X, float64, Plain<double>)                \
  R2CCL_COMPLEX(X, complex64, Plain<Complex<float>>)   \
  R2CCL_COMPLEX(X, complex128, Plain<Complex<double>>) \
  R2CCL_SMALL_REDUCTIONS(X)

// X(type, element): conversions and divisions.
#define R2CCL_CONVERSIONS(X)            \
  X(int8, Plain<int8_t>)                \
  X(uint8, Plain<uint8_t>)              \
  X(int16, Plain<int16_t>)              \
  X(uint16, Plain<uint16_t>)            \
  X(int32, Plain<int32_t>)              \
  X(uint32, Plain<uint32_t>)            \
  X(int64, Plain<int64_t>)              \
  X(uint64, Plain<uint64_t>)            \
  X(float32, Plain<float>)              \
  X(float64, Plain<double>)             \
  X(complex64, Plain<Complex<float>>)   \
  X(complex128, Plain<Complex<double>>) \
  X(float16, Small<Float16>)            \
  X(bfloat16, Small<Bfloat16>)          \
  X(float8_e4m3fn, Small<Float8E4m3fn>) \
  X(float8_e5m2, Small<Float8E5m2>)
