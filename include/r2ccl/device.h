// C ABI of devices: opening a GPU, and its memory, queues and arithmetic one by one, for the Python edge and for tests.
// What each function promises stands with the class Device (device/device.h) and CudaDevice (device/cuda.h).
#ifndef R2CCL_DEVICE_H
#define R2CCL_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "r2ccl/r2ccl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define R2CCL_MAX_SOURCES 8  // operands of one reduction

// Where an address points: 0 pageable memory of the host, 1 pinned, 2 of a GPU, 3 managed.
typedef struct r2ccl_pointer {
  int32_t kind;
  int32_t ordinal;
  uint64_t buffer_id;
} r2ccl_pointer;

// A range of GPU memory for another process: plain bytes, to be sent as they are.
typedef struct r2ccl_export {
  uint8_t bytes[80];
} r2ccl_export;

// What a reduction waits for and publishes (device/kernels/arguments.h); words in staging memory, `arrived` in the
// GPU's, zero.
typedef struct r2ccl_gate {
  const uint64_t* ready;
  uint64_t ready_value;
  uint64_t* done;
  uint64_t done_value;
  uint32_t* arrived;
} r2ccl_gate;

// library: the driver; "" is the system's. why: text of what is missing, cut to size, always ended by 0.
// How many GPUs this process can use; 0: why.
R2CCL_API int32_t r2ccl_cuda_probe(const char* library, char* why, size_t size);
// NULL: why.
R2CCL_API r2ccl_device* r2ccl_cuda_open(const char* library, int32_t ordinal, char* why, size_t size);
R2CCL_API void r2ccl_device_close(r2ccl_device*);
// Its PCI address; empty: the driver does not say.
R2CCL_API void r2ccl_device_bus_id(r2ccl_device*, char* out, size_t size);
// 1: streams wait by memory operations; 0: by small kernels.
R2CCL_API int32_t r2ccl_device_memory_operations(r2ccl_device*);
// Blocks handed out and not given back.
R2CCL_API uint64_t r2ccl_device_blocks(r2ccl_device*);

R2CCL_API void* r2ccl_device_allocate(r2ccl_device*, uint64_t bytes, int32_t staging);
R2CCL_API void r2ccl_device_release(r2ccl_device*, void* memory, int32_t staging);

// queue: 0 out, 1 in, 2 local. wide: bit 0 dst, bit 1 + s source s. gate: NULL, or what it waits for. OK or
// INVALID_ARGUMENT; nothing is complete yet.
R2CCL_API int32_t r2ccl_device_reduce(r2ccl_device*, void* dst, const void* const* sources, uint32_t source_count,
                                      uint64_t count, int32_t dtype, int32_t op, uint32_t avg_ranks, uint32_t wide,
                                      int32_t queue, const r2ccl_gate* gate);
R2CCL_API int32_t r2ccl_device_copy(r2ccl_device*, void* dst, const void* src, uint64_t count, int32_t dtype,
                                    uint32_t avg_ranks, uint32_t wide, int32_t queue);
R2CCL_API uint64_t r2ccl_device_mark(r2ccl_device*, int32_t queue);
R2CCL_API uint64_t r2ccl_device_passed(r2ccl_device*, int32_t queue);
// NULL: the device is well.
R2CCL_API const char* r2ccl_device_failure(r2ccl_device*);

// 1: enqueued; 0: refused.
R2CCL_API int32_t r2ccl_device_signal(r2ccl_device*, void* stream, uint64_t* word, uint64_t value);
R2CCL_API int32_t r2ccl_device_hold(r2ccl_device*, void* stream, const uint64_t* word, uint64_t value);
R2CCL_API int32_t r2ccl_device_capturing(r2ccl_device*, void* stream);

R2CCL_API void r2ccl_device_pointer(r2ccl_device*, const void* address, r2ccl_pointer* out);
R2CCL_API int32_t r2ccl_device_register(r2ccl_device*, void* memory, uint64_t bytes);
R2CCL_API void r2ccl_device_unregister(r2ccl_device*, void* memory);
R2CCL_API int32_t r2ccl_device_export(r2ccl_device*, const void* memory, uint64_t bytes, r2ccl_export* out);
R2CCL_API void* r2ccl_device_import(r2ccl_device*, const r2ccl_export* exported);
R2CCL_API void r2ccl_device_close_imported(r2ccl_device*, void* memory);
R2CCL_API int32_t r2ccl_device_reach(r2ccl_device*, int32_t ordinal);
R2CCL_API int32_t r2ccl_device_dma_buf(r2ccl_device*, const void* memory, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
