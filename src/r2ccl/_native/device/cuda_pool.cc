#include "cuda_pool.h"

#include <bit>
#include <cassert>

namespace r2ccl {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSmallest = 256;

// Four sizes per power of two: at most a quarter is wasted, and blocks fit again.
size_t size_class(size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  const size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

}  // namespace

CudaPool::~CudaPool() {
  const CurrentContext current(context_);
  for (const auto& [memory, block] : blocks_) to_driver(block.base);
}

void* CudaPool::from_driver(size_t bytes) noexcept {
  const cuda::Driver& driver = context_.driver();
  if (kind_ == Kind::kDevice) {
    cuda::Address address = 0;
    return driver.allocate(&address, bytes) == cuda::kSuccess ? reinterpret_cast<void*>(address) : nullptr;
  }
  void* memory = nullptr;
  const unsigned flags = cuda::kHostPortable | cuda::kHostDeviceMap;
  return driver.host_allocate(&memory, bytes, flags) == cuda::kSuccess ? memory : nullptr;
}

void CudaPool::to_driver(void* base) noexcept {
  const cuda::Driver& driver = context_.driver();
  if (kind_ == Kind::kDevice) {
    driver.release(reinterpret_cast<cuda::Address>(base));
  } else {
    driver.host_release(base);
  }
}

// The smallest idle block of a class from `bytes` to `at_most`; nullptr: there is none.
void* CudaPool::take_idle(size_t bytes, size_t at_most) noexcept {
  for (auto found = idle_.lower_bound(bytes); found != idle_.end() && found->first <= at_most; ++found) {
    if (found->second.empty()) continue;
    void* memory = found->second.back();
    found->second.pop_back();
    blocks_.find(memory)->second.used = true;
    return memory;
  }
  return nullptr;
}

void* CudaPool::allocate(size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const size_t wanted = size_class(bytes);
  if (void* memory = take_idle(wanted, wanted)) return memory;
  const CurrentContext current(context_);
  // The driver aligns to 256 bytes only.
  const size_t alignment = wanted >= kPageBytes ? kPageBytes : kSmallest;
  void* base = from_driver(wanted + (alignment > kSmallest ? alignment : 0));
  // When the driver has none left, a larger block will do.
  if (base == nullptr) return take_idle(wanted, SIZE_MAX);
  const auto aligned = (reinterpret_cast<uintptr_t>(base) + alignment - 1) / alignment * alignment;
  void* memory = reinterpret_cast<void*>(aligned);
  try {
    blocks_.emplace(memory, Block{base, wanted, true});
    return memory;
  } catch (...) {
    to_driver(base);  // no memory for the books
    return nullptr;
  }
}

void CudaPool::release(void* memory) noexcept {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(memory);
  assert(found != blocks_.end() && found->second.used);
  found->second.used = false;
  try {
    idle_[found->second.bytes].push_back(memory);
  } catch (...) {
    // It stays in blocks_ and goes back with the pool.
  }
}

size_t CudaPool::used() noexcept {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [memory, block] : blocks_) count += block.used ? 1 : 0;
  return count;
}

}  // namespace r2ccl
