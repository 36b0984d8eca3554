// The loops behind HostDevice, one table per instruction set. Internal to device/ and its test.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device.h"

namespace r2ccl {

// One loop each over `count` elements in the accumulation type; any address; dst may be exactly a or b.
using CombineFn = void (*)(void* dst, const void* a, const void* b, size_t count) noexcept;
using DivideFn = void (*)(void* data, uint32_t divisor, size_t count) noexcept;
using WidenFn = void (*)(void* dst, const void* src, size_t count) noexcept;
using NarrowFn = void (*)(void* dst, const void* src, size_t count) noexcept;

// Entries are nullptr where the combination has no meaning; low-precision types have only widen and narrow,
// their arithmetic is that of kFloat32. kAvg has no column of its own: it combines as kSum.
struct KernelTable {
  static constexpr size_t kDTypes = static_cast<size_t>(DType::kCount);
  static constexpr size_t kOps = static_cast<size_t>(ReduceOp::kAvg);

  const char* name;
  CombineFn combine[kDTypes][kOps];
  DivideFn divide[kDTypes];
  WidenFn widen[kDTypes];
  NarrowFn narrow[kDTypes];
};

extern const KernelTable kBaselineKernels;  // what the compiler's default target allows
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;    // AVX2, F16C
extern const KernelTable kAvx512Kernels;  // AVX-512 F, BW, VL, DQ
#endif

// The tables this processor can run, slowest first; returns how many were written to `tables`.
constexpr size_t kMaxKernelTables = 3;
size_t usable_kernels(const KernelTable* (&tables)[kMaxKernelTables]) noexcept;

// A Device on ordinary memory over one table.
class HostDevice final : public Device {
 public:
  explicit HostDevice(const KernelTable& kernels) noexcept : kernels_(kernels) {}

  void reduce(Operand dst, ConstOperand a, ConstOperand b, size_t count, DType dtype, ReduceOp op, uint32_t avg_ranks,
              DeviceQueue queue = DeviceQueue::kLocal) noexcept override;
  void copy(Operand dst, ConstOperand src, size_t count, DType dtype, uint32_t avg_ranks,
            DeviceQueue queue = DeviceQueue::kLocal) noexcept override;
  void* allocate(size_t bytes) noexcept override;
  void release(void* memory) noexcept override;

 private:
  const KernelTable& kernels_;
};

}  // namespace r2ccl
