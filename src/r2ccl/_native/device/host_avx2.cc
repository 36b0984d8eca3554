// The loops for AVX2 and F16C: compile with -mavx2 -mf16c. Empty on other architectures.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c"
#endif
#define R2CCL_KERNELS kAvx2Kernels
#define R2CCL_KERNELS_NAME "avx2"
#include "host_kernels.inl"
#endif
