// A GPU of the tests' driver, and what tests ask of that driver.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "check.h"
#include "cuda.h"

namespace r2ccl::test {

// Functions of the driver that only tests have; see tests/fake_cuda/README.md.
template <class F>
F fake(const char* name) {
  static void* library = dlopen(R2CCL_FAKE_CUDA_LIBRARY, RTLD_NOW);
  return reinterpret_cast<F>(dlsym(library, name));
}

inline void set(const char* knob, long value) {
  CHECK(fake<int (*)(const char*, long)>("fake_cuda_set")(knob, value) == 0);
}
inline long count(const char* thing) { return fake<long (*)(const char*)>("fake_cuda_count")(thing); }
inline void* bytes_of(const void* p, size_t bytes) {
  return fake<void* (*)(const void*, size_t)>("fake_cuda_host_address")(p, bytes);
}

inline std::unique_ptr<CudaDevice> open_device(int ordinal = 0) {
  std::string why;
  auto device = CudaDevice::open(R2CCL_FAKE_CUDA_LIBRARY, ordinal, &why);
  if (!CHECK(device != nullptr)) std::fprintf(stderr, "  %s\n", why.c_str());
  return device;
}

// Until all that was given to the queue is complete; false: the device failed, or it took too long.
inline bool finish(CudaDevice& device, DeviceQueue queue) {
  const uint64_t mark = device.mark(queue);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int turns = 0; device.passed(queue) < mark; ++turns) {
    if (device.failure() != nullptr || std::chrono::steady_clock::now() > deadline) return false;
    if (turns > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

}  // namespace r2ccl::test
