// A GPU's primary context, which every library of the process shares, and how calls that failed are remembered.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "cuda_driver.h"

namespace r2ccl {

class CudaContext {
 public:
  // Retains the primary context. valid() is false where that failed, and failure() says why.
  CudaContext(const cuda::Driver& driver, int ordinal) noexcept;
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const cuda::Driver& driver() const noexcept { return driver_; }
  cuda::DeviceId id() const noexcept { return id_; }
  cuda::Context handle() const noexcept { return handle_; }
  int ordinal() const noexcept { return ordinal_; }
  bool valid() const noexcept { return handle_ != nullptr; }
  // 0 where the driver does not know the attribute.
  int attribute(int which) const noexcept;

  // True for success. Otherwise the first failure is kept for good, with the name that the driver gives it.
  bool check(cuda::Result result, const char* call) noexcept;
  const char* failure() const noexcept { return failed_.load(std::memory_order_acquire) ? failure_.c_str() : nullptr; }

 private:
  const cuda::Driver& driver_;
  const int ordinal_;
  cuda::DeviceId id_ = -1;
  cuda::Context handle_ = nullptr;
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::string failure_;  // written once, before failed_
};

// The context is the thread's current one for as long as this lives, whatever it was before and will be again.
// Meanwhile the thread may also allocate and ask: while any stream of the process records a graph, such calls would
// otherwise fail, and spoil the graph.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaContext& context) noexcept
      : driver_(context.driver()),
        pushed_(context.valid() && driver_.context_push(context.handle()) == cuda::kSuccess) {
    driver_.exchange_capture_mode(&capture_mode_);
  }
  ~CurrentContext() {
    driver_.exchange_capture_mode(&capture_mode_);
    cuda::Context popped;
    if (pushed_) driver_.context_pop(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const cuda::Driver& driver_;
  const bool pushed_;
  int capture_mode_ = cuda::kCaptureModeRelaxed;  // later: what the thread had
};

}  // namespace r2ccl
