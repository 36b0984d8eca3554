// The kernels of one context, found by what they do, and their launch.
#pragma once

#include "cuda_context.h"
#include "device.h"
#include "kernels/arguments.h"

namespace r2ccl {

// The compiled kernels as they are embedded; never nullptr. *built is false where the library was built without nvcc.
const void* cuda_kernel_image(bool* built) noexcept;

class CudaKernels {
 public:
  explicit CudaKernels(CudaContext& context) noexcept : context_(context) {}
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Loads all kernels at once: loading one later could wait for work that is under way. The context is current.
  bool load(std::string* why_not);

  // Each is false where the launch failed; the context knows why. The context is current.
  bool reduce(const kernels::ReduceArguments& arguments, DType dtype, ReduceOp op, cuda::Stream stream) noexcept;
  bool convert(const kernels::ConvertArguments& arguments, DType dtype, cuda::Stream stream) noexcept;
  // These report the driver's answer: a user's stream may be no good without the device being so.
  cuda::Result signal(const kernels::WordArguments& arguments, cuda::Stream stream) noexcept;
  cuda::Result hold(const kernels::WordArguments& arguments, cuda::Stream stream) noexcept;

 private:
  static constexpr size_t kDTypes = static_cast<size_t>(DType::kCount);
  static constexpr size_t kOps = static_cast<size_t>(ReduceOp::kCount);
  enum Kind : size_t { kReduce, kMixed, kKinds };

  bool find(const std::string& name, cuda::Function* function, std::string* why_not);
  unsigned blocks(uint64_t count, DType dtype, bool gated) const noexcept;
  template <class Arguments>
  cuda::Result launch(cuda::Function function, unsigned blocks, unsigned threads, const Arguments& arguments,
                      cuda::Stream stream) noexcept;

  CudaContext& context_;
  cuda::Module module_ = nullptr;
  unsigned processors_ = 1;
  cuda::Function reduce_[kKinds][kDTypes][kOps] = {};
  cuda::Function convert_[kDTypes] = {};
  cuda::Function signal_ = nullptr, hold_ = nullptr;
};

}  // namespace r2ccl
