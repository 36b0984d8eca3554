// The few words of CUDA that the kernels use. nvcc has them; for g++ this header supplies them, so that the same text
// runs on processor threads: blocks and threads one after the other, or each as a thread of its own where they wait for
// each other (tests/fake_cuda/launch.h).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)

#define R2CCL_DEVICE __device__ __forceinline__
#define R2CCL_KERNEL(name, Arguments)                                                                              \
  extern "C" __global__ void __launch_bounds__(::r2ccl::kernels::kBlockThreads, ::r2ccl::kernels::kResidentBlocks) \
      name(const __grid_constant__ Arguments arguments)
#define R2CCL_UNROLL _Pragma("unroll")
#define R2CCL_KEEP_LOOP _Pragma("unroll 1")
#define R2CCL_SHARED_WORD(name) __shared__ uint32_t name

namespace r2ccl::kernels {

// Words shared with the host, a NIC or another GPU: system scope.
R2CCL_DEVICE uint64_t load_acquire_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
R2CCL_DEVICE uint32_t load_acquire_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
R2CCL_DEVICE void store_release_system(uint64_t* p, uint64_t v) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// A counter among the blocks of one launch.
R2CCL_DEVICE uint32_t count_acquire_release(uint32_t* p) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
  return before;
}
R2CCL_DEVICE void pause() { __nanosleep(64); }

}  // namespace r2ccl::kernels

#else

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

#define R2CCL_DEVICE inline
#define R2CCL_KERNEL(name, Arguments) extern "C" void name(const Arguments& arguments)
#define R2CCL_UNROLL
#define R2CCL_KEEP_LOOP
#define R2CCL_SHARED_WORD(name) uint32_t& name = ::r2ccl::kernels::block->word

namespace r2ccl::kernels {

struct Block {
  uint32_t word = 0;
  std::barrier<>* barrier = nullptr;  // nullptr: threads run one after the other and do not wait
};
struct Index {
  unsigned x = 0;
};
inline thread_local Index threadIdx, blockIdx, blockDim, gridDim;
inline thread_local Block* block = nullptr;

inline void __syncthreads() {
  if (block->barrier != nullptr) block->barrier->arrive_and_wait();
}

template <class T>
T load_acquire_system(const T* p) {
  return std::atomic_ref<T>(const_cast<T&>(*p)).load(std::memory_order_acquire);
}
template <class T>
void store_release_system(T* p, T v) {
  std::atomic_ref<T>(*p).store(v, std::memory_order_release);
}
inline uint32_t count_acquire_release(uint32_t* p) {
  return std::atomic_ref<uint32_t>(*p).fetch_add(1, std::memory_order_acq_rel);
}
inline void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

}  // namespace r2ccl::kernels

#endif
