// The loops for AVX-512: compile with -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq. Empty on other architectures.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "compile this file with -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif
#define R2CCL_KERNELS kAvx512Kernels
#define R2CCL_KERNELS_NAME "avx512"
#include "host_kernels.inl"
#endif
