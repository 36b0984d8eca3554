// Every kernel by its name. Compiled by nvcc for GPUs and by g++ for the tests' driver.
#pragma once

#include "list.h"
#include "reduce.cuh"

namespace r2ccl::kernels {

#define X(type, op, element, operation, divides) \
  R2CCL_KERNEL(r2ccl_reduce_##type##_##op, ReduceArguments) { reduce<element, operation, divides>(arguments); }
R2CCL_REDUCTIONS(X)
#undef X

#define X(type, op, element, operation, divides) \
  R2CCL_KERNEL(r2ccl_mixed_##type##_##op, ReduceArguments) { reduce_mixed<element, operation, divides>(arguments); }
R2CCL_SMALL_REDUCTIONS(X)
#undef X

#define X(type, element) \
  R2CCL_KERNEL(r2ccl_convert_##type, ConvertArguments) { convert<element>(arguments); }
R2CCL_CONVERSIONS(X)
#undef X

R2CCL_KERNEL(r2ccl_signal, WordArguments) { signal(arguments); }
R2CCL_KERNEL(r2ccl_hold, WordArguments) { hold(arguments); }

}  // namespace r2ccl::kernels
