#include "cuda_kernels.h"

#include <algorithm>

namespace r2ccl {
namespace {

constexpr const char* kTypeNames[] = {"bool",    "int8",          "uint8",       "int16",     "uint16",    "int32",
                                      "uint32",  "int64",         "uint64",      "float16",   "bfloat16",  "float32",
                                      "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"};
constexpr const char* kOpNames[] = {"sum", "prod", "min", "max", "avg"};
static_assert(std::size(kTypeNames) == static_cast<size_t>(DType::kCount));
static_assert(std::size(kOpNames) == static_cast<size_t>(ReduceOp::kCount));

constexpr unsigned kBlocksPerProcessor = 8;  // 2048 threads
constexpr unsigned kPacksPerThread = 4;      // fewer: not worth a block of its own
constexpr size_t kPackBytes = 16;

size_t index(DType dtype) { return static_cast<size_t>(dtype); }
size_t index(ReduceOp op) { return static_cast<size_t>(op); }

// Which kernel does the work of a combination: several share their bits (see kernels/list.h).
void canonical(DType& dtype, ReduceOp& op) {
  if (dtype == DType::kBool) {
    if (op == ReduceOp::kMax) op = ReduceOp::kSum;
    if (op == ReduceOp::kMin) op = ReduceOp::kProd;
    return;
  }
  if (op != ReduceOp::kSum && op != ReduceOp::kProd) return;
  if (dtype == DType::kInt8) dtype = DType::kUint8;
  if (dtype == DType::kInt16) dtype = DType::kUint16;
  if (dtype == DType::kInt32) dtype = DType::kUint32;
  if (dtype == DType::kInt64) dtype = DType::kUint64;
}

}  // namespace

CudaKernels::~CudaKernels() {
  if (module_ == nullptr) return;
  const CurrentContext current(context_);
  context_.driver().module_unload(module_);
}

bool CudaKernels::find(const std::string& name, cuda::Function* function, std::string* why_not) {
  const cuda::Driver& driver = context_.driver();
  cuda::Result result = driver.module_function(function, module_, name.c_str());
  if (result == cuda::kSuccess && driver.function_load != nullptr) result = driver.function_load(*function);
  if (result == cuda::kSuccess) return true;
  *why_not = "kernel " + name + ": " + driver.name_of(result);
  return false;
}

bool CudaKernels::load(std::string* why_not) {
  bool built = false;
  const void* image = cuda_kernel_image(&built);
  const cuda::Result result = context_.driver().module_load(&module_, image);
  if (result != cuda::kSuccess) {
    module_ = nullptr;
    *why_not = "the kernels cannot be loaded: " + context_.driver().name_of(result);
    *why_not += built ? "; this GPU may be older than those that the library was built for"
                      : "; the library was built without nvcc: install a CUDA toolkit, or the Python package "
                        "nvidia-cuda-nvcc, and install r2ccl again";
    return false;
  }
  processors_ = static_cast<unsigned>(std::max(1, context_.attribute(cuda::kAttributeProcessors)));
  for (size_t d = 0; d < kDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (size_t o = 0; o < kOps; ++o) {
      auto type = dtype;
      auto op = static_cast<ReduceOp>(o);
      if (!reducible(type, op)) continue;
      canonical(type, op);
      const std::string what = std::string(kTypeNames[index(type)]) + "_" + kOpNames[index(op)];
      if (!find("r2ccl_reduce_" + what, &reduce_[kReduce][d][o], why_not)) return false;
      if (!dtype_is_low_precision(dtype)) continue;
      if (!find("r2ccl_mixed_" + what, &reduce_[kMixed][d][o], why_not)) return false;
    }
    if (dtype == DType::kBool) continue;  // has no average, nor a wider form
    if (!find(std::string("r2ccl_convert_") + kTypeNames[d], &convert_[d], why_not)) return false;
  }
  return find("r2ccl_signal", &signal_, why_not) && find("r2ccl_hold", &hold_, why_not);
}

unsigned CudaKernels::blocks(uint64_t count, DType dtype, bool gated) const noexcept {
  constexpr uint64_t kBytesPerBlock = uint64_t{kernels::kBlockThreads} * kPacksPerThread * kPackBytes;
  const uint64_t wanted = (count * dtype_size(dtype) + kBytesPerBlock - 1) / kBytesPerBlock;
  // A launch with a gate has all its blocks resident at once.
  const uint64_t most = gated ? processors_ : uint64_t{processors_} * kBlocksPerProcessor;
  return static_cast<unsigned>(std::clamp<uint64_t>(wanted, 1, most));
}

template <class Arguments>
cuda::Result CudaKernels::launch(cuda::Function function, unsigned blocks, unsigned threads, const Arguments& arguments,
                                 cuda::Stream stream) noexcept {
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  return context_.driver().launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
}

bool CudaKernels::reduce(const kernels::ReduceArguments& arguments, DType dtype, ReduceOp op,
                         cuda::Stream stream) noexcept {
  kernels::ReduceArguments given = arguments;
  const uint32_t all_wide = (2u << given.source_count) - 1;
  Kind kind = kReduce;
  if (dtype_is_low_precision(dtype) && given.wide != 0) {
    // Wide everywhere is float32 everywhere.
    if (given.wide == all_wide)
      dtype = DType::kFloat32;
    else
      kind = kMixed;
  }
  const bool gated = given.gate.ready != nullptr || given.gate.done != nullptr;
  return context_.check(launch(reduce_[kind][index(dtype)][index(op)], blocks(given.count, dtype, gated),
                               kernels::kBlockThreads, given, stream),
                        "launch of a reduction");
}

bool CudaKernels::convert(const kernels::ConvertArguments& arguments, DType dtype, cuda::Stream stream) noexcept {
  kernels::ConvertArguments given = arguments;
  if (dtype_is_low_precision(dtype) && given.wide == 3) dtype = DType::kFloat32;
  if (!dtype_is_low_precision(dtype)) given.wide = 0;
  return context_.check(
      launch(convert_[index(dtype)], blocks(given.count, dtype, false), kernels::kBlockThreads, given, stream),
      "launch of a conversion");
}

cuda::Result CudaKernels::signal(const kernels::WordArguments& arguments, cuda::Stream stream) noexcept {
  return launch(signal_, 1, 1, arguments, stream);
}

cuda::Result CudaKernels::hold(const kernels::WordArguments& arguments, cuda::Stream stream) noexcept {
  return launch(hold_, 1, 1, arguments, stream);
}

}  // namespace r2ccl
