// The loops for any processor of the architecture.
#define R2CCL_KERNELS kBaselineKernels
#define R2CCL_KERNELS_NAME "baseline"
#include "host_kernels.inl"
