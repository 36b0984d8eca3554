// Host memory: chooses the loops once and cuts low-precision work into blocks that stay in the first-level cache.
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "host_kernels.h"

namespace r2ccl {
namespace {

constexpr size_t kBlock = 1024;  // elements: three float32 blocks are 12 KiB
constexpr size_t kPageBytes = 4096;
constexpr size_t kLineBytes = 64;

size_t index(DType dtype) noexcept { return static_cast<size_t>(dtype); }

// kAvg combines as kSum.
size_t column(ReduceOp op) noexcept { return static_cast<size_t>(op == ReduceOp::kAvg ? ReduceOp::kSum : op); }

char* advance(void* data, size_t bytes) noexcept { return static_cast<char*>(data) + bytes; }
const char* advance(const void* data, size_t bytes) noexcept { return static_cast<const char*>(data) + bytes; }

size_t smaller(size_t a, size_t b) noexcept { return a < b ? a : b; }

// The block of `operand` that begins at element `first`, in float32: as it lies, or widened into `scratch`.
const void* wide_block(const KernelTable& kernels, ConstOperand operand, size_t first, size_t count, DType dtype,
                       float* scratch) noexcept {
  const char* data = advance(operand.data, operand_bytes(first, dtype, operand.wide));
  if (operand.wide) return data;
  kernels.widen[index(dtype)](scratch, data, count);
  return scratch;
}

}  // namespace

size_t dtype_size(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBool:
    case DType::kInt8:
    case DType::kUint8:
    case DType::kFloat8E4m3fn:
    case DType::kFloat8E5m2:
      return 1;
    case DType::kInt16:
    case DType::kUint16:
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
    case DType::kInt32:
    case DType::kUint32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kUint64:
    case DType::kFloat64:
    case DType::kComplex64:
      return 8;
    case DType::kComplex128:
      return 16;
    case DType::kCount:
      break;
  }
  return 0;
}

bool dtype_is_low_precision(DType dtype) noexcept {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat8E4m3fn ||
         dtype == DType::kFloat8E5m2;
}

bool reducible(DType dtype, ReduceOp op) noexcept {
  if (dtype >= DType::kCount || op >= ReduceOp::kCount) return false;
  if (dtype == DType::kBool) return op != ReduceOp::kAvg;
  if (dtype == DType::kComplex64 || dtype == DType::kComplex128) return op != ReduceOp::kMin && op != ReduceOp::kMax;
  return true;
}

size_t usable_kernels(const KernelTable* (&tables)[kMaxKernelTables]) noexcept {
  size_t count = 0;
  tables[count++] = &kBaselineKernels;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    tables[count++] = &kAvx2Kernels;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
      tables[count++] = &kAvx512Kernels;
    }
  }
#endif
  return count;
}

void HostDevice::reduce(Operand dst, ConstOperand a, ConstOperand b, size_t count, DType dtype, ReduceOp op,
                        uint32_t avg_ranks, DeviceQueue) noexcept {
  const bool low = dtype_is_low_precision(dtype);
  const size_t row = low ? index(DType::kFloat32) : index(dtype);
  const CombineFn combine = kernels_.combine[row][column(op)];
  const DivideFn divide = avg_ranks > 1 ? kernels_.divide[row] : nullptr;
  const bool as_they_lie = !low || (dst.wide && a.wide && b.wide);
  if (as_they_lie && divide == nullptr) return combine(dst.data, a.data, b.data, count);

  alignas(kLineBytes) float scratch_a[kBlock];
  alignas(kLineBytes) float scratch_b[kBlock];
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t n = smaller(kBlock, count - first);
    char* out = advance(dst.data, operand_bytes(first, dtype, dst.wide));
    const size_t offset = operand_bytes(first, dtype, true);
    const void* x = low ? wide_block(kernels_, a, first, n, dtype, scratch_a) : advance(a.data, offset);
    const void* y = low ? wide_block(kernels_, b, first, n, dtype, scratch_b) : advance(b.data, offset);
    void* result = low && !dst.wide ? static_cast<void*>(scratch_a) : out;
    combine(result, x, y, n);
    if (divide != nullptr) divide(result, avg_ranks, n);
    if (result != out) kernels_.narrow[index(dtype)](out, result, n);
  }
}

void HostDevice::copy(Operand dst, ConstOperand src, size_t count, DType dtype, uint32_t avg_ranks,
                      DeviceQueue) noexcept {
  const bool low = dtype_is_low_precision(dtype);
  const DivideFn divide = avg_ranks > 1 ? kernels_.divide[low ? index(DType::kFloat32) : index(dtype)] : nullptr;
  if (divide == nullptr && (!low || dst.wide == src.wide)) {
    if (count != 0 && dst.data != src.data) std::memcpy(dst.data, src.data, operand_bytes(count, dtype, dst.wide));
    return;
  }

  alignas(kLineBytes) float scratch[kBlock];
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t n = smaller(kBlock, count - first);
    char* out = advance(dst.data, operand_bytes(first, dtype, dst.wide));
    const char* in = advance(src.data, operand_bytes(first, dtype, src.wide));
    void* result = low && !dst.wide ? static_cast<void*>(scratch) : out;
    if (low && !src.wide) {
      kernels_.widen[index(dtype)](result, in, n);
    } else if (result != in) {
      std::memcpy(result, in, operand_bytes(n, dtype, true));
    }
    if (divide != nullptr) divide(result, avg_ranks, n);
    if (result != out) kernels_.narrow[index(dtype)](out, result, n);
  }
}

void* HostDevice::allocate(size_t bytes) noexcept {
  const size_t alignment = bytes >= kPageBytes ? kPageBytes : kLineBytes;
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) == 0 ? memory : nullptr;
}

void HostDevice::release(void* memory) noexcept { std::free(memory); }

Device& host_device() noexcept {
  static HostDevice device = [] {
    const KernelTable* tables[kMaxKernelTables];
    return HostDevice(*tables[usable_kernels(tables) - 1]);
  }();
  return device;
}

}  // namespace r2ccl
