// Memory from the driver, kept until the end when it is given back: the driver's own functions are slow, and freeing
// waits for all streams, of which some may wait for us.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda_context.h"

namespace r2ccl {

class CudaPool {
 public:
  enum class Kind { kDevice, kPinned };

  CudaPool(CudaContext& context, Kind kind) noexcept : context_(context), kind_(kind) {}
  ~CudaPool();
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;

  // At least 64-byte aligned, page aligned from one page on; nullptr: there is none left.
  void* allocate(size_t bytes) noexcept;
  void release(void* memory) noexcept;
  // How many blocks were handed out and not given back.
  size_t used() noexcept;

 private:
  struct Block {
    void* base;    // as the driver gave it
    size_t bytes;  // of the size class
    bool used;
  };

  void* from_driver(size_t bytes) noexcept;
  void to_driver(void* base) noexcept;
  void* take_idle(size_t bytes, size_t at_most) noexcept;

  CudaContext& context_;
  const Kind kind_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;    // all, by the address handed out
  std::map<size_t, std::vector<void*>> idle_;  // by size class
};

}  // namespace r2ccl
