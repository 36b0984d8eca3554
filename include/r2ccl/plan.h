// Plain records shared with the structured dtypes of src/r2ccl/plan/ir.py. Sizes and offsets are asserted on both
// sides.
#ifndef R2CCL_PLAN_H
#define R2CCL_PLAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum r2ccl_op_kind { R2CCL_SEND = 0, R2CCL_RECV = 1, R2CCL_RECV_REDUCE = 2, R2CCL_COPY = 3, R2CCL_REDUCE = 4 };
enum r2ccl_buf { R2CCL_BUF_SEND = 0, R2CCL_BUF_RECV = 1, R2CCL_BUF_SCRATCH = 2 };
enum r2ccl_flag { R2CCL_WIDE = 1, R2CCL_FINAL = 2 };

// One operation of one rank; see OpKind in ir.py.
struct r2ccl_op {
  uint8_t kind;
  uint8_t lane;
  uint8_t flags;
  uint8_t dst_buf;
  uint8_t src_buf;
  uint8_t pad[3];
  int32_t peer;
  uint32_t dst;
  uint32_t src;
  uint32_t parts;
  uint32_t dep_first;
  uint32_t dep_count;
};

// An earlier operation that one waits for, chunk by chunk or as a whole.
struct r2ccl_dep {
  uint32_t op;
  uint32_t whole;
};

#ifdef __cplusplus
}
static_assert(sizeof(r2ccl_op) == 32 && offsetof(r2ccl_op, peer) == 8 && offsetof(r2ccl_op, dep_count) == 28);
static_assert(sizeof(r2ccl_dep) == 8);
#endif
#endif
