// What cuda_api.h restates, against the toolkit's <cuda.h>. Compiled only; it does nothing.
#include <cuda.h>

#include <cstddef>

#include "cuda_api.h"

namespace mine = r2ccl::cuda;

static_assert(sizeof(CUipcMemHandle) == sizeof(mine::IpcHandle) && alignof(CUipcMemHandle) == alignof(mine::IpcHandle));
static_assert(sizeof(CUdeviceptr) == sizeof(mine::Address) && sizeof(CUdevice) == sizeof(mine::DeviceId));
static_assert(sizeof(CUresult) == sizeof(mine::Result));

#define SAME(theirs, ours) static_assert(static_cast<long long>(theirs) == static_cast<long long>(mine::ours), #theirs)
SAME(CUDA_SUCCESS, kSuccess);
SAME(CUDA_ERROR_INVALID_VALUE, kInvalidValue);
SAME(CUDA_ERROR_OUT_OF_MEMORY, kOutOfMemory);
SAME(CUDA_ERROR_NO_DEVICE, kNoDevice);
SAME(CUDA_ERROR_INVALID_CONTEXT, kInvalidContext);
SAME(CUDA_ERROR_INVALID_HANDLE, kInvalidHandle);
SAME(CUDA_ERROR_NOT_FOUND, kNotFound);
SAME(CUDA_ERROR_NOT_READY, kNotReady);
SAME(CUDA_ERROR_ILLEGAL_ADDRESS, kIllegalAddress);
SAME(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, kPeerAccessAlreadyEnabled);
SAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, kHostMemoryAlreadyRegistered);
SAME(CUDA_ERROR_LAUNCH_FAILED, kLaunchFailed);
SAME(CUDA_ERROR_NOT_SUPPORTED, kNotSupported);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kCaptureErrorsFirst);
SAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, kCaptureErrorsLast);
SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, kAttributeProcessors);
SAME(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, kAttributeThreadsPerProcessor);
SAME(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, kAttributeUnifiedAddressing);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kAttributeMajor);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, kAttributeMinor);
SAME(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, kAttributeFlushRemoteWrites);
SAME(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, kAttributeNicAccess);
SAME(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, kAttributeFlushNicWrites);
SAME(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, kAttributeWritesOrdering);
SAME(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST, kFlushByHost);
SAME(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, kOrderedForOwner);
SAME(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, kFlushCurrentContext);
SAME(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, kFlushToOwner);
SAME(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, kAttributeMemoryOperations64);
SAME(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, kAttributeDmaBuf);
SAME(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, kPointerMemoryType);
SAME(CU_POINTER_ATTRIBUTE_BUFFER_ID, kPointerBufferId);
SAME(CU_POINTER_ATTRIBUTE_IS_MANAGED, kPointerIsManaged);
SAME(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, kPointerOrdinal);
SAME(CU_MEMORYTYPE_HOST, kMemoryHost);
SAME(CU_MEMORYTYPE_DEVICE, kMemoryDevice);
SAME(CU_MEMORYTYPE_UNIFIED, kMemoryUnified);
SAME(CU_STREAM_NON_BLOCKING, kStreamNonBlocking);
SAME(CU_EVENT_DISABLE_TIMING, kEventDisableTiming);
SAME(CU_MEMHOSTALLOC_PORTABLE, kHostPortable);
SAME(CU_MEMHOSTREGISTER_PORTABLE, kHostPortable);
SAME(CU_MEMHOSTALLOC_DEVICEMAP, kHostDeviceMap);
SAME(CU_MEMHOSTREGISTER_DEVICEMAP, kHostDeviceMap);
SAME(CU_STREAM_WAIT_VALUE_GEQ, kWaitGreaterEqual);
SAME(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, kIpcLazyPeerAccess);
SAME(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, kRangeDmaBuf);
SAME(CU_STREAM_CAPTURE_STATUS_NONE, kCaptureNone);
SAME(CU_STREAM_CAPTURE_MODE_RELAXED, kCaptureModeRelaxed);

// The same number of parameters, each of the same size.
template <class F>
struct Shape;
template <class R, class... A>
struct Shape<R (*)(A...)> {
  static constexpr size_t count = sizeof...(A);
  static constexpr bool equals(const size_t (&other)[count + 1]) {
    const size_t mine[] = {sizeof(R), sizeof(A)...};
    for (size_t i = 0; i <= count; ++i) {
      if (mine[i] != other[i]) return false;
    }
    return true;
  }
};
template <class F, class G>
struct Same;
template <class F, class R, class... A>
struct Same<F, R (*)(A...)> {
  static constexpr bool value = [] {
    if constexpr (Shape<F>::count == sizeof...(A))
      return Shape<F>::equals({sizeof(R), sizeof(A)...});
    else
      return false;
  }();
};

namespace r2ccl::cuda {
#define X(field, symbol, parameters) \
  static_assert(::Same<decltype(&::symbol), Result(*) parameters>::value, #symbol " has other parameters");
R2CCL_CUDA_REQUIRED(X)
R2CCL_CUDA_OPTIONAL(X)
#undef X
}  // namespace r2ccl::cuda

// The versions are those that the header's macros choose.
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
constexpr bool equal(const char* a, const char* b) { return *a == *b && (*a == 0 || equal(a + 1, b + 1)); }
static_assert(equal(TEXT(cuMemAlloc), "cuMemAlloc_v2") && equal(TEXT(cuMemFree), "cuMemFree_v2"));
static_assert(equal(TEXT(cuMemHostRegister), "cuMemHostRegister_v2"));
static_assert(equal(TEXT(cuMemHostGetDevicePointer), "cuMemHostGetDevicePointer_v2"));
static_assert(equal(TEXT(cuMemGetAddressRange), "cuMemGetAddressRange_v2"));
static_assert(equal(TEXT(cuStreamDestroy), "cuStreamDestroy_v2") && equal(TEXT(cuEventDestroy), "cuEventDestroy_v2"));
static_assert(equal(TEXT(cuStreamWaitValue64), "cuStreamWaitValue64_v2"));
static_assert(equal(TEXT(cuStreamWriteValue64), "cuStreamWriteValue64_v2"));
static_assert(equal(TEXT(cuIpcOpenMemHandle), "cuIpcOpenMemHandle_v2"));
static_assert(equal(TEXT(cuDevicePrimaryCtxRelease), "cuDevicePrimaryCtxRelease_v2"));
static_assert(equal(TEXT(cuCtxPushCurrent), "cuCtxPushCurrent_v2") &&
              equal(TEXT(cuCtxPopCurrent), "cuCtxPopCurrent_v2"));

int main() {}
