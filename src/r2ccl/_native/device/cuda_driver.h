// The CUDA driver, opened when it is first asked for: a table of functions, never linked against.
#pragma once

#include <string>

#include "cuda_api.h"

namespace r2ccl::cuda {

struct Driver {
#define X(field, symbol, parameters) Result(*field) parameters = nullptr;
  R2CCL_CUDA_REQUIRED(X)
  R2CCL_CUDA_OPTIONAL(X)
#undef X

  // "CUDA_ERROR_ILLEGAL_ADDRESS", or the number where the driver knows no name.
  std::string name_of(Result result) const;
};

// The table of a library: libcuda.so.1 where `library` is empty, else that file. Opened and initialised once for each
// name, never closed. nullptr: *why_not says what is missing, and what would help. Any thread may ask.
const Driver* driver(const std::string& library, std::string* why_not);

// How many GPUs the driver offers; 0: *why_not says why none.
int device_count(const Driver& driver, std::string* why_not);

}  // namespace r2ccl::cuda
