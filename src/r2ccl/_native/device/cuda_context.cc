#include "cuda_context.h"

namespace r2ccl {

CudaContext::CudaContext(const cuda::Driver& driver, int ordinal) noexcept : driver_(driver), ordinal_(ordinal) {
  if (!check(driver_.device_get(&id_, ordinal), "cuDeviceGet")) return;
  check(driver_.primary_retain(&handle_, id_), "cuDevicePrimaryCtxRetain");
}

CudaContext::~CudaContext() {
  if (valid()) driver_.primary_release(id_);
}

int CudaContext::attribute(int which) const noexcept {
  int value = 0;
  return driver_.device_attribute(&value, which, id_) == cuda::kSuccess ? value : 0;
}

bool CudaContext::check(cuda::Result result, const char* call) noexcept {
  if (result == cuda::kSuccess) return true;
  const std::lock_guard lock(failure_mutex_);
  if (failed_.load(std::memory_order_relaxed)) return false;
  try {
    failure_ = std::string(call) + ": " + driver_.name_of(result) + " on GPU " + std::to_string(ordinal_);
  } catch (...) {
    // Out of memory for the text: failed all the same.
  }
  failed_.store(true, std::memory_order_release);
  return false;
}

}  // namespace r2ccl
