// Status codes: the list lives in include/r2ccl/r2ccl.h, this gives it a C++ type.
#pragma once
#include "r2ccl/r2ccl.h"

namespace r2ccl {

enum class Status : int32_t {
#define X(name, number, cls) name = number,
  R2CCL_STATUS_LIST(X)
#undef X
};

}  // namespace r2ccl
