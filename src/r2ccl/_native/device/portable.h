// How a function says that it is compiled for the host and, where nvcc compiles it, for the GPU as well.
#pragma once

#if defined(__CUDACC__)
#define R2CCL_FN __host__ __device__ __forceinline__
#else
#define R2CCL_FN inline
#endif
