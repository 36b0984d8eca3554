// The C ABI over devices. Handles are CudaDevice: the host's device needs no handle.
#include <algorithm>
#include <cstring>
#include <string>

#include "device/cuda.h"
#include "r2ccl/device.h"

using r2ccl::CudaDevice;
using r2ccl::CudaExport;
using r2ccl::DeviceQueue;
using r2ccl::DType;
using r2ccl::ReduceOp;

namespace {

CudaDevice* of(r2ccl_device* device) { return reinterpret_cast<CudaDevice*>(device); }

void set_text(const std::string& text, char* out, size_t size) {
  if (size == 0) return;
  const size_t n = std::min(text.size(), size - 1);
  std::memcpy(out, text.data(), n);
  out[n] = 0;
}

bool is_queue(int32_t queue) { return queue >= 0 && queue < static_cast<int32_t>(DeviceQueue::kCount); }

static_assert(sizeof(CudaExport) == sizeof(r2ccl_export));
static_assert(R2CCL_MAX_SOURCES == r2ccl::kernels::kMaxSources);

}  // namespace

extern "C" {

int32_t r2ccl_cuda_probe(const char* library, char* why, size_t size) {
  try {
    std::string reason;
    const r2ccl::cuda::Driver* driver = r2ccl::cuda::driver(library, &reason);
    const int count = driver != nullptr ? r2ccl::cuda::device_count(*driver, &reason) : 0;
    if (count == 0) set_text(reason, why, size);
    return count;
  } catch (...) {
    set_text("out of memory", why, size);
    return 0;
  }
}

r2ccl_device* r2ccl_cuda_open(const char* library, int32_t ordinal, char* why, size_t size) {
  try {
    std::string reason;
    std::unique_ptr<CudaDevice> device = CudaDevice::open(library, ordinal, &reason);
    if (device == nullptr) set_text(reason, why, size);
    return reinterpret_cast<r2ccl_device*>(device.release());
  } catch (...) {
    set_text("out of memory", why, size);
    return nullptr;
  }
}

void r2ccl_device_close(r2ccl_device* device) { delete of(device); }
void r2ccl_device_bus_id(r2ccl_device* device, char* out, size_t size) {
  if (size > 0) out[0] = 0;
  try {
    set_text(of(device)->bus_id(), out, size);
  } catch (...) {  // out of memory: it does not say
  }
}
int32_t r2ccl_device_memory_operations(r2ccl_device* device) { return of(device)->memory_operations() ? 1 : 0; }
uint64_t r2ccl_device_blocks(r2ccl_device* device) { return of(device)->blocks_in_use(); }

void* r2ccl_device_allocate(r2ccl_device* device, uint64_t bytes, int32_t staging) {
  return staging != 0 ? of(device)->allocate_staging(bytes) : of(device)->allocate(bytes);
}
void r2ccl_device_release(r2ccl_device* device, void* memory, int32_t staging) {
  if (staging != 0)
    of(device)->release_staging(memory);
  else
    of(device)->release(memory);
}

int32_t r2ccl_device_reduce(r2ccl_device* device, void* dst, const void* const* sources, uint32_t source_count,
                            uint64_t count, int32_t dtype, int32_t op, uint32_t avg_ranks, uint32_t wide, int32_t queue,
                            const r2ccl_gate* gate) {
  const auto type = static_cast<DType>(dtype);
  const auto reduce_op = static_cast<ReduceOp>(op);
  if (!r2ccl::reducible(type, reduce_op) || !is_queue(queue)) return R2CCL_INVALID_ARGUMENT;
  if (source_count < 2 || source_count > R2CCL_MAX_SOURCES) return R2CCL_INVALID_ARGUMENT;
  r2ccl::ConstOperand operands[R2CCL_MAX_SOURCES];
  for (uint32_t s = 0; s < source_count; ++s) operands[s] = {sources[s], (wide >> (1 + s) & 1) != 0};
  r2ccl::kernels::Gate waits = {};
  if (gate != nullptr) waits = {gate->ready, gate->ready_value, gate->done, gate->done_value, gate->arrived, nullptr};
  of(device)->reduce_many({dst, (wide & 1) != 0}, operands, source_count, count, type, reduce_op, avg_ranks,
                          static_cast<DeviceQueue>(queue), waits);
  return R2CCL_OK;
}

int32_t r2ccl_device_copy(r2ccl_device* device, void* dst, const void* src, uint64_t count, int32_t dtype,
                          uint32_t avg_ranks, uint32_t wide, int32_t queue) {
  const auto type = static_cast<DType>(dtype);
  if (r2ccl::dtype_size(type) == 0 || !is_queue(queue)) return R2CCL_INVALID_ARGUMENT;
  if (avg_ranks > 1 && !r2ccl::reducible(type, ReduceOp::kAvg)) return R2CCL_INVALID_ARGUMENT;
  of(device)->copy({dst, (wide & 1) != 0}, {src, (wide & 2) != 0}, count, type, avg_ranks,
                   static_cast<DeviceQueue>(queue));
  return R2CCL_OK;
}

uint64_t r2ccl_device_mark(r2ccl_device* device, int32_t queue) {
  return of(device)->mark(static_cast<DeviceQueue>(queue));
}
uint64_t r2ccl_device_passed(r2ccl_device* device, int32_t queue) {
  return of(device)->passed(static_cast<DeviceQueue>(queue));
}
const char* r2ccl_device_failure(r2ccl_device* device) { return of(device)->failure(); }

int32_t r2ccl_device_signal(r2ccl_device* device, void* stream, uint64_t* word, uint64_t value) {
  return of(device)->signal(stream, word, value) ? 1 : 0;
}
int32_t r2ccl_device_hold(r2ccl_device* device, void* stream, const uint64_t* word, uint64_t value) {
  return of(device)->hold(stream, word, value) ? 1 : 0;
}
int32_t r2ccl_device_capturing(r2ccl_device* device, void* stream) { return of(device)->capturing(stream) ? 1 : 0; }

void r2ccl_device_pointer(r2ccl_device* device, const void* address, r2ccl_pointer* out) {
  const r2ccl::CudaPointer found = of(device)->pointer(address);
  *out = {static_cast<int32_t>(found.kind), found.ordinal, found.buffer_id};
}
int32_t r2ccl_device_register(r2ccl_device* device, void* memory, uint64_t bytes) {
  return of(device)->register_host(memory, bytes) ? 1 : 0;
}
void r2ccl_device_unregister(r2ccl_device* device, void* memory) { of(device)->unregister_host(memory); }

int32_t r2ccl_device_export(r2ccl_device* device, const void* memory, uint64_t bytes, r2ccl_export* out) {
  CudaExport exported = {};
  if (!of(device)->export_memory(memory, bytes, &exported)) return 0;
  std::memcpy(out->bytes, &exported, sizeof(exported));
  return 1;
}
void* r2ccl_device_import(r2ccl_device* device, const r2ccl_export* exported) {
  CudaExport given = {};
  std::memcpy(&given, exported->bytes, sizeof(given));
  return of(device)->import_memory(given);
}
void r2ccl_device_close_imported(r2ccl_device* device, void* memory) { of(device)->close_imported(memory); }
int32_t r2ccl_device_reach(r2ccl_device* device, int32_t ordinal) { return of(device)->reach(ordinal) ? 1 : 0; }
int32_t r2ccl_device_dma_buf(r2ccl_device* device, const void* memory, uint64_t bytes) {
  return of(device)->dma_buf(memory, bytes);
}

}  // extern "C"
